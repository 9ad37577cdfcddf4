// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/queues/queue_pair_face.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair_options.hpp>
#include <boost/asio/cancellation_type.hpp>

#include "queues/completion_service.hpp"
#include "queues/receive_queue.hpp"
#include "queues/send_queue.hpp"
#include "verbs/memory_window_impl.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

namespace asio_rdma::detail {

class last_receive;
class shared_receive_queue_impl;

/// The connection of a queue pair, by which its peer learns of its end. Destroyed at close.
class connection_link {
public:
  virtual ~connection_link() = default;
  /// Disconnects from the peer, or ends an attempt with `why`. Does not block.
  virtual void disconnect(const error_code& why) noexcept = 0;
  /// After `disconnect`: whether destroying the queue pair now would wait for the peer. If so, the
  /// queue pair is passed to `keep`, which releases it later.
  virtual bool lingers() const noexcept = 0;
  virtual void keep(std::shared_ptr<void> queue_pair) noexcept = 0;
  /// Called once, when the first message of the peer has arrived before the queue pair was
  /// connected.
  virtual void on_first_receive() noexcept {}
  /// The peer, which must send first, has sent. Called with the mutex of the queue pair locked.
  virtual void on_heard() noexcept {}
};

/// The logic of `basic_queue_pair`: its verbs object, its two queues and its state.
class queue_pair_impl final : public context_member {
public:
  queue_pair_impl(asio::execution_context& context, const protection_domain& pd,
                  const queue_pair_options& options);
  ~queue_pair_impl();

  /// Makes the queue pair, ready for receives. If `queue` is null, a shared completion queue is
  /// used.
  error_code open(std::shared_ptr<completion_queue_impl> queue,
                  std::shared_ptr<shared_receive_queue_impl> receives);
  /// Adopts a queue pair that uses the completion queue `queue`, or the receive queue `receives`.
  /// One of them is null.
  error_code adopt(std::shared_ptr<completion_queue_impl> queue,
                   std::shared_ptr<shared_receive_queue_impl> receives, ibv_qp* qp);

  error_code local_address(queue_pair_address& result) const;
  /// `own`: the link that has been attached for this, if there is one.
  error_code connect(const queue_pair_address& peer, const connection_link* own = nullptr);

  /// For connecting by rdma_cm. From `attach` on, a close is reported to the link. `detach` undoes
  /// `attach`. `connected` allows sends. If `accepts`, the first receive calls
  /// `connection_link::on_first_receive`.
  error_code attach(std::shared_ptr<connection_link> link, bool accepts = false);
  /// Calls `connection_link::on_heard`.
  void report_heard() noexcept;
  /// The error that `attach` would return.
  error_code check_attach() const;
  void detach();
  /// `reads`: the READs and atomics that may be in flight; 0: the peer answers none.
  void connected(std::uint8_t reads);
  /// Marks the queue pair as connected by the caller, without a connection manager.
  void connected_by_caller();
  /// Gives an adopted queue pair the link of its connection, and marks it as connected.
  void adopted(std::shared_ptr<connection_link> link) noexcept;
  error_code modify(ibv_qp_attr& attr, int mask);
  error_code query(ibv_qp_attr& attr, int mask) const;
  /// The features of enhanced connection establishment (ibv_query_ece(3)). No vendor: the device
  /// has none.
  error_code query_features(ibv_ece& features) const;
  /// The next `modify` enables these features (ibv_set_ece(3)), if the device has any.
  error_code set_features(ibv_ece features);
  std::uint32_t vendor_error() const;
  /// The error of the first work request that failed by itself, if one has. Flushed operations
  /// report `connection_reset`.
  error_code first_failure() const;
  unsigned access_flags() const noexcept;

  /// Ends every operation with `operation_aborted` once the device no longer uses its memory.
  void close();
  /// Cancels every operation. Posted ones are ended by the error state.
  void cancel();
  /// Ends every operation with `why`, after a failure of the device or the end of the peer. If
  /// `why` is `connection_reset`, an event of the device may tell a more precise reason.
  void fail(const error_code& why);
  /// Fails the queue pair after a failed receive of the shared receive queue, like `fail`. The
  /// caller has locked the mutex of the shared receive queue.
  void shared_receive_failed(const ibv_wc& wc, operation_list& ready);
  /// Reports the first receive of an accepting queue pair, if it is one of the shared receive
  /// queue: see `connection_link::on_first_receive`. The caller has locked the mutex of the shared
  /// receive queue.
  void shared_receive_arrived(operation_list& ready);
  /// Cancels one operation. A posted operation is cancelled only if `type` contains `terminal`.
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  /// Cancels a send operation that waits for room. Otherwise returns false.
  bool withdraw(std::uint64_t id);
  /// Whether a send operation waits for room, or for the release of a held queue.
  bool is_waiting(std::uint64_t id) const;

  /// Return true, or false with the error in the operation, which then stays the caller's. `start`
  /// is also a function of queue_pair_face.hpp, for more kinds of operations.
  bool start(send_operation& op) { return detail::start(*this, op); }
  /// Assigns a window to this queue pair, and sets the key of its next bind. Errors: those of
  /// `memory_window_impl::give_to`, or the reason why no operation can be started.
  error_code prepare_bind(memory_window_impl& window, ibv_send_wr& wr);
  bool start(receive_operation& op) { return detail::start(*this, op); }
  /// Starts an operation that completes when the queue pair fails or is closed.
  bool start(operation& op);
  /// Starts the one last operation, internal and in the background. It completes after all others,
  /// with the reason of the queue pair's end, when the device has released the queue pair.
  bool start_last(operation& op);
  void hold();
  void release();

  std::uint64_t next_id() noexcept { return ids_.fetch_add(1, std::memory_order_relaxed) + 1; }
  asio::execution_context& context() const noexcept { return service_.context(); }
  const protection_domain& get_protection_domain() const noexcept { return pd_; }
  const std::shared_ptr<completion_queue_impl>& completion_queue() const noexcept { return cq_; }
  const queue_pair_options& options() const noexcept { return options_; }
  /// Null once the queue pair has failed or is closed.
  ibv_qp* native_handle() const noexcept {
    const std::lock_guard lock(mutex_);
    return qp_;
  }
  /// 0 before the queue pair is made.
  std::uint32_t number() const noexcept { return number_.load(std::memory_order_relaxed); }
  bool has_shared_receives() const noexcept { return srq_ != nullptr; }
  queue_pair_state state() const;
  /// Whether the device, the queue pair's type and the peer support an operation. All support SEND
  /// and WRITE.
  bool supports(ibv_wr_opcode o) const noexcept {
    return (unsupported_.load(std::memory_order_relaxed) >> o & 1) == 0;
  }
  /// Whether the device will report a request of the send queue.
  bool awaits_send() const {
    const std::lock_guard lock(mutex_);
    return send_.awaits_report();
  }
  /// Whether a READ may have to wait for others, and so cannot take the shortest path. Does not
  /// change once the queue pair is connected.
  bool limits_reads() const noexcept { return send_.is_siw(); }

  void on_context_shutdown() override { close(); }
  void on_device_event(const ibv_async_event& event) noexcept override;
  const device& member_device() const noexcept override { return pd_.get_device(); }
  const ibv_qp* member_queue_pair() const noexcept override { return qp_; }

private:
  // The paths of each send and receive: as friends they cost one call, not two.
  friend bool detail::start(queue_pair_impl& impl, send_operation& op);
  friend bool detail::start(queue_pair_impl& impl, receive_operation& op);
  // The queues post to the verbs object; a failed completion or post makes the queue pair fail.
  friend class send_queue;
  friend class receive_queue;
  class joining;
  class refused;
  class lingering;

  /// Calls a member function without any mutex locked: on the execution context, or in
  /// completion_queue::poll(). Not called if the context shuts down, as the queue pair ends then.
  class deferred_call final : public operation {
  public:
    deferred_call(queue_pair_impl& qp, void (queue_pair_impl::*call)()) noexcept
        : operation(&deferred_call::run), qp_(qp), call_(call) {
      internal = true;
    }
    /// Adds the call to completed operations. Called with the mutex locked.
    void queue(operation_list& ready);
    /// Takes back a queued call. A queued call keeps the queue pair alive, and in mode `manual`
    /// perhaps no thread runs it.
    void drop();

  private:
    static void run(operation* base, disposal how);

    queue_pair_impl& qp_;
    void (queue_pair_impl::*call_)();
    std::shared_ptr<context_member> self_; // while queued
    std::atomic<bool> queued_{false};      // else nothing is searched for
  };

  ibv_qp* create(ibv_qp_init_attr& init);
  error_code initialize();
  void prepare_end();
  void expect_last_receive();
  void may_receive(ibv_qp_state state) noexcept;
  std::optional<gid_entry> choose_gid() const;
  void find_unsupported() noexcept;
  void find_flush(ibv_qp* qp) noexcept;
  void connected_locked(std::uint8_t reads) noexcept;
  std::uint8_t reads_in_flight() const noexcept;
  std::uint8_t siw_reads(std::uint8_t reads) const noexcept;
  error_code attachable(const connection_link* own = nullptr) const;
  error_code check_start(queue_pair_state least) const;
  // Called with the mutex locked; they unlock it.
  template <class Operation>
  [[gnu::noinline]] bool start_slowly(work_queue& queue, Operation& op, std::uint32_t max_sge,
                                      queue_pair_state least);
  [[gnu::noinline]] bool start_failed(send_operation& op, int e, bool is_refused);
  [[gnu::noinline]] bool start_unusual(send_operation& op);
  [[gnu::noinline]] bool receive_refused(receive_operation& op, int e);

  /// Returns the operation's error. If work requests were flushed, events of the device that were
  /// not read may tell the reason. Until those are read, `list_of_failed` is not `ready`.
  error_code completion_failure(const ibv_wc& wc, operation_list& ready);
  operation_list& list_of_failed(operation_list& ready) noexcept {
    return has_ended() ? ready : flushed_;
  }
  void end_flushed(operation_list& ready) noexcept;
  void read_device_events() noexcept;
  void examine(operation_list& ready);
  void enter_failed(const error_code& why, operation_list& ready);
  void fail_after_event(const error_code& why, const ibv_qp* only, bool all_written = false);
  void examine_failure();
  bool has_ended() const noexcept {
    return state_ == queue_pair_state::failed || state_ == queue_pair_state::closed;
  }
  void publish(operation_list& ready);
  void drop_calls();
  bool any_posted() const;
  bool has_posted() const noexcept; // with the mutex locked
  void release_failed();
  void disconnect(ibv_qp* qp, const std::shared_ptr<connection_link>& link,
                  const error_code& why) noexcept;
  bool may_have_receives() const;
  void await_first(bool first) noexcept;
  void first_arrived(operation_list& ready);
  void report_first_receive();
  void release_device(ibv_qp* qp, const std::shared_ptr<connection_link>& link,
                      const error_code& why) noexcept;
  bool destroy(ibv_qp* qp) noexcept;
  void abandon(ibv_qp* qp) noexcept;

  completion_service& service_;
  protection_domain pd_;
  queue_pair_options options_;
  std::shared_ptr<completion_queue_impl> cq_;
  std::shared_ptr<shared_receive_queue_impl> srq_;
  std::uint32_t reserved_ = 0;
  std::atomic<std::uint32_t> unsupported_{0}; // one bit for each `ibv_wr_opcode`
  std::atomic<std::uint64_t> ids_{0};

  mutable biased_mutex mutex_;
  ibv_qp* qp_ = nullptr;
  std::atomic<queue_pair_state> state_{queue_pair_state::closed};
  error_code reason_;       // the error of operations, once failed or closed
  error_code event_reason_; // `reason_` according to an event, unless a completion tells the cause
  std::chrono::steady_clock::time_point examined_until_; // set with `event_reason_`
  bool is_examined_ = false; // `examination_` has been queued, and both queues are held
  operation_list flushed_;   // by the device; they wait for `reason_`
  error_code first_failure_;
  std::uint32_t vendor_error_ = 0;
  std::atomic<std::uint32_t> number_{0};
  std::uint32_t packet_number_ = 0;
  mutable std::optional<gid_entry> gid_; // the GID that the peer was given, if it was
  send_queue send_;
  receive_queue receive_;
  std::unique_ptr<last_receive> last_receive_; // only if one may be needed
  std::unique_ptr<refused> refused_;
  std::shared_ptr<lingering> lingering_; // set if destroying the verbs object may wait for the peer
  const std::shared_ptr<bound_windows> windows_ = std::make_shared<bound_windows>();
  operation_list waiters_;
  operation* last_ = nullptr;
  std::shared_ptr<connection_link> link_;
  bool awaits_first_ = false; // the link has not been notified of the first receive
  deferred_call first_receive_{*this, &queue_pair_impl::report_first_receive};
  // Chooses the reason: after an event, while the completion that tells it may be yet to come, and
  // after a flush, while the event that tells it may be unread.
  deferred_call examination_{*this, &queue_pair_impl::examine_failure};
  // Releases the device's part once the queue pair has failed.
  deferred_call teardown_{*this, &queue_pair_impl::release_failed};
  std::recursive_mutex releasing_; // held while the device's part is released
  bool disconnected_ = false;      // guarded by `releasing_`, as is the next one
  bool in_error_ = false;          // the verbs object is in the error state
};

} // namespace asio_rdma::detail
