// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/connecting/connecting_face.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/steady_timer.hpp>

#include "connecting/acceptor_tallies.hpp"
#include "connecting/cm_service.hpp"
#include "connecting/connection_target.hpp"
#include "core/checked_mutex.hpp"
#include "queues/queue_pair_impl.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace asio_rdma::detail {

/// One connection by rdma_cm, from its first step to the disconnect: connecting, or accepting a
/// request. The queue pair is one of the library's own, on the library's own opened device. rdma_cm
/// only knows its number and provides the attributes to connect it.
///
/// An attempt belongs to the execution context of its acceptor or connector. An established
/// connection moves to the context of its queue pair, which then reads its events.
class cm_connection final : public cm_handler {
public:
  cm_connection(cm_service& service, const asio::any_io_executor& executor);
  ~cm_connection();

  /// The context of its acceptor or connector. It may have been destroyed: compare only.
  const asio::execution_context& context() const noexcept { return context_; }

  /// Connects to the first endpoint that answers, in order. After an error or an exception nothing
  /// was started.
  error_code connect(connect_operation& op, std::shared_ptr<queue_pair_impl> qp,
                     std::vector<asio::ip::tcp::endpoint> endpoints, connect_options options);

  /// Takes over the id of a request, which is then counted once, by its end.
  void adopt(const cm_event& request, std::shared_ptr<acceptor_tallies> tallies) noexcept;
  /// Counts the end of a request that no attempt has taken, and logs it.
  void count_end(acceptor_tallies::counter what, const error_code& why = {}) noexcept;
  /// Takes over an id of the user's that has a connection, with the queue pair that `adopt_its`
  /// adopts. Returns null after an error or an exception: then the id stays the user's, as after
  /// `cm_service::take_id`.
  static std::shared_ptr<queue_pair_impl>
  adopt(cm_service& service, const asio::any_io_executor& executor, rdma_cm_id* id,
        const std::function<std::shared_ptr<queue_pair_impl>(error_code&)>& adopt_its,
        error_code& ec);
  /// Whether the connector has withdrawn its request, as far as the device knows. Costs one system
  /// call.
  bool withdrawn() const;
  connection_info info() const;
  asio::ip::tcp::endpoint remote_endpoint() const noexcept;
  /// The connector of a request that was adopted.
  const asio::ip::tcp::endpoint& connector() const noexcept { return to_; }
  std::string device_name() const;
  rdma_cm_id* native_handle() const;
  /// The service that will read the events of the queue pair's connection. Its event channel is
  /// made here, so that a connection does not fail for lack of one. Called by initiating functions
  /// only: the queue pair's context exists until they return. Errors: those of
  /// `cm_service::prepare`.
  static cm_home home_of(const queue_pair_impl& qp, error_code& ec);
  /// `counted`: the operation counts as work already. After an error or an exception nothing was
  /// started. After most errors another queue pair can accept the request.
  error_code accept(connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
                    const cm_home& home, const accept_options& options, bool counted);
  error_code reject(const private_data& data);
  /// Whether the private data are a valid handshake. No other request connects an object with one.
  bool has_hello() const noexcept;
  /// Puts the request to the program's function. Returns false if the function does not admit it:
  /// the request was then rejected and counted. An exception of the function does not leave this
  /// one. Returns true if the connector has given up, which accepting the request then reports.
  /// Throws `std::bad_alloc` before the call.
  bool is_admitted(const admit_function& admit);

  /// Errors of accepting that are known before a request exists: `invalid_argument`,
  /// `operation_not_supported`.
  static error_code check(const connect_operation& op, const queue_pair_impl& qp,
                          const private_data& data);
  /// Errors of accepting a request on `device`, or on any device if null: `error::wrong_device`,
  /// `message_size`.
  static error_code check_fit(const ibv_context* device, const queue_pair_impl& qp,
                              const private_data& data);

  void close(const cm_service& by) override;
  /// Ends a handshake, of a connector that does not answer, in favour of others.
  void give_way() noexcept;
  /// Ends the connection, or the attempt with `why`.
  void give_up(const error_code& why) noexcept;
  /// Like `give_up`. But if `why` is `connection_reset`, an attempt continues to the next event,
  /// which reports the cause.
  void disconnect(const error_code& why) noexcept;
  bool lingers() const noexcept;
  void keep(std::shared_ptr<void> queue_pair) noexcept;
  /// The first message has arrived.
  void on_first_receive() noexcept;
  /// Ends an attempt with `operation_aborted`. An established connection is not affected.
  void cancel();
  void cancel(std::uint64_t operation_id, asio::cancellation_type_t type);
  std::uint64_t next_id() noexcept { return ++ids_; }

  void on_cm_event(const cm_event& event) override;

private:
  enum class state {
    idle,
    requested,
    resolving,
    connecting,
    pausing, ///< before the endpoint is asked again
    accepting,
    established,
    closed
  };

  /// Actions to be done after the mutex is unlocked, because they call or wait for other objects.
  struct leftovers {
    cm_use own, home; // first, so that the services exist for all that follows
    completion_service* operations = nullptr;
    connect_operation* done = nullptr;
    cm_service* service = nullptr;
    call_list ended;              // ids that a background thread destroys
    call_list ended_here;         // ids that hold a port of the program's choice
    rdma_cm_id* unused = nullptr; // destroying it does not block a thread of the context
    std::shared_ptr<cm_handler> self;
    std::shared_ptr<void> kept;
    std::shared_ptr<queue_pair_impl> detached, failed;
    std::shared_ptr<connection_target> connected, dropped;
    error_code why;

    void destroy_ids() noexcept;
    void destroy_ids_here() noexcept;
  };

  class new_home;
  class connect_call;

  std::shared_ptr<acceptor_tallies> tallies() const;
  void take_established(rdma_cm_id* id, std::shared_ptr<queue_pair_impl> qp) noexcept;
  bool begin(leftovers& left) noexcept;
  /// Calls `f`. If that lacks memory, ends the attempt.
  template <class Function>
  void or_no_memory(leftovers& left, Function&& f) {
    try {
      f();
    } catch (const std::bad_alloc&) {
      if (op_ != nullptr)
        finish(asio::error::no_memory, left);
    }
  }
  void take_event(const cm_event& event, leftovers& left);
  void next_endpoint(error_code why, leftovers& left);
  bool lost_device(const error_code& why) const;
  bool asks_again(const cm_event& event);
  bool tries_foreign_loopback() const;
  std::optional<asio::ip::tcp::endpoint> own_address_for_loopback() const;
  error_code resolve(const asio::ip::tcp::endpoint& to, leftovers& left);
  error_code resolve_address();
  error_code on_address_resolved();
  error_code on_route_resolved();
  error_code on_response(const cm_event& event);
  error_code on_reply(const cm_event& event);
  error_code start_call();
  void take_back_call() noexcept;
  bool is_calling() const noexcept;
  bool call_uses_queue_pair() const noexcept;
  void on_returned(const std::shared_ptr<connect_call>& call, int error) noexcept;
  void take_result(const std::shared_ptr<connect_call>& call);
  error_code check_accept(const queue_pair_impl& qp, const private_data& data);
  error_code answer(const accept_options& options);
  error_code read_hello(connection_target& target);
  /// A change of the queue pair's state, for ibv_modify_qp.
  struct queue_pair_change {
    ibv_qp_attr attr{};
    int mask = 0;
  };
  error_code find_change(ibv_qp_state to, std::uint8_t reads_out, std::uint8_t reads_in,
                         queue_pair_change& c) const;
  error_code apply(queue_pair_change& c);
  error_code prepare_queue_pair(ibv_qp_state to, std::uint8_t reads_out, std::uint8_t reads_in);
  error_code offer_features();
  error_code take_features();
  bool given_up() const;
  error_code step_error(int value) const;
  rdma_conn_param parameters(const private_data& data) const;
  void arm_timer(std::chrono::milliseconds timeout);
  void wake_at(std::chrono::steady_clock::time_point time);
  void on_timer(std::uint64_t attempt);
  error_code move_home(leftovers& left) noexcept;
  void finish(const error_code& ec, leftovers& left) noexcept;
  bool end_has_effects() noexcept;
  void end(const error_code& why, leftovers& left) noexcept;
  bool destroying_would_wait() const noexcept;
  bool waits_for_peer() const noexcept;
  void retire_id(leftovers& left) noexcept;
  void end_lingering(leftovers& left) noexcept;
  void settle(leftovers& left) noexcept;
  void refuse_admission(const char* thrown) noexcept;
  void count(acceptor_tallies::counter what, const error_code& why = {},
             const char* thrown = nullptr) noexcept;
  void count_accept(const error_code& result) noexcept;
  void end_handshake() noexcept;
  void log_connect(const error_code& result) const noexcept;
  error_code with_endpoint(const error_code& why) const noexcept;

  std::atomic<std::uint64_t> ids_{0};

  const asio::execution_context& context_;
  const std::shared_ptr<ending_ids> ending_; // of the acceptor's context
  mutable checked_mutex mutex_;
  cm_service* service_; // used with its gate entered; that of the queue pair once moved
  std::shared_ptr<cm_gate> gate_;
  cm_service* home_ = nullptr; // the service of the queue pair's context
  std::shared_ptr<cm_gate> home_gate_;
  std::optional<asio::steady_timer> timer_; // until the attempt ends
  state state_ = state::idle;
  rdma_cm_id* id_ = nullptr;
  std::shared_ptr<cm_id_end> end_;     // for `id_`
  std::shared_ptr<connect_call> call_; // until its result has been taken
  rdma_cm_id* lingering_ = nullptr;    // a retired id that waits for its call or its last event
  bool destroying_ = false;            // rdma_destroy_id waits for the last event
  std::shared_ptr<cm_handler> self_;   // while an id lingers
  std::shared_ptr<void> kept_;         // the queue pair's verbs object, while its destruction would
                                       // wait for the peer
  std::shared_ptr<acceptor_tallies> tallies_; // of a request that has not been counted
  std::shared_ptr<acceptor_tallies> unheard_; // on iWARP, of an established connection: the peer
                                              // need not have sent anything
  cm_event request_;
  cm_data reply_;
  connect_operation* op_ = nullptr;
  std::shared_ptr<queue_pair_impl> qp_;
  std::vector<asio::ip::tcp::endpoint> endpoints_;
  std::size_t next_ = 0;
  bool in_event_ = false; // only then may the id be read: librdmacm does not write to it
  bool loopback_replaced_ = false;
  int port_trials_ = 0;
  asio::ip::tcp::endpoint to_; // the endpoint of the attempt, or of the connector
  std::chrono::milliseconds patience_{0};
  std::chrono::milliseconds pause_{0};               // before the endpoint is asked again
  std::chrono::steady_clock::time_point deadline_{}; // of the endpoint, or of the accept
  // The queue pair fails if the attempt does: it has left its first state, or on iWARP the peer has
  // been reached.
  bool spent_ = false;
  bool gives_way_ = false;
  bool expects_frame_ = false; // its target reports the peer's first frame
  std::uint8_t reads_out_ = 0; // reads and atomics that the peer answers at a time
  connect_options options_;
  std::uint64_t attempt_ = 0; // identifies the attempt of a timer that may be late
};

} // namespace asio_rdma::detail
