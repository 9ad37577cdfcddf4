// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/streams/stream_face.hpp>
#include <asio_rdma/stream_options.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>

#include "link/link_pull.hpp"
#include "link/link_session.hpp"
#include "streams/stream_protocol.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace asio_rdma::detail {

/// The logic of `basic_stream`: bytes on a link.
class stream_impl final : public link_session {
public:
  using endpoint_type = asio::ip::tcp::endpoint;

  stream_impl(const asio::any_io_executor& ex, const memory_pool& pool, const stream_options& o);
  ~stream_impl() override;

  error_code open(std::shared_ptr<completion_queue_impl> queue);
  error_code open(const std::shared_ptr<shared_receives_impl>& shared);

  /// Return true, or false with the result in the operation, which then stays the caller's.
  bool start(stream_reading& op);
  bool start(stream_writing& op);
  bool start(stream_error_wait& op);
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  void cancel();

  /// Run an operation without a handler. If it would block, it blocks if `wait`; otherwise its
  /// error is `would_block`. The result is in `op`.
  void run_here(stream_reading& op, bool wait);
  void run_here(stream_writing& op, bool wait);
  void run_here(stream_error_wait& op, bool wait);

  std::size_t available();
  error_code shutdown(asio::socket_base::shutdown_type what);
  error_code endpoint(endpoint_type& result, bool remote) const;
  void set_no_delay(bool on);
  bool no_delay() const;

  /// Ends every operation. Written bytes are sent in the background, as long as the peer takes some
  /// in every `stream_options::linger`: for so many of them in all, and one more for each
  /// `bytes_of_linger`.
  void close();
  static constexpr std::uint64_t most_lingers = 16, bytes_of_linger = 65536;

  const stream_options& options() const noexcept { return stream_options_; }
  bool non_blocking = false;

  /// Sets the socket option `linger`.
  void set_linger(const asio::socket_base::linger& option);
  asio::socket_base::linger linger() const;

  void on_connected(const connection_info& info) override;
  completion_queue_impl* last_work() override;

private:
  class closer;
  class holder;
  class stay;
  struct chunk;
  struct direct_pull;

  void make_parts(frame_link& frames, const handshake& peer) override;
  bool run_parts(operation_list& done) override;
  void on_idle(bool quiet) override;
  void on_key_ended(offered& o, operation_list& done) override;
  void add_payload(const outgoing_frame& frame, frame_transfer& to) override;

  bool begin(stream_reading& op);
  bool begin(stream_writing& op);
  bool begin(stream_error_wait& op);
  bool run_at_once(stream_reading& op, operation_list& done);
  bool run_at_once(stream_writing& op, operation_list& done);
  bool run_at_once(stream_error_wait&, operation_list&) noexcept { return false; }
  void enqueue(stream_reading& op);
  void enqueue(stream_writing& op);
  void enqueue(stream_error_wait&) noexcept { ++error_waits_; }
  template <class Op>
  void run_or_enqueue(Op& op, link_impl::visit& v) {
    if (!run_at_once(op, v.done)) {
      enqueue(op);
      active_.push_back(op);
    }
    v.advance();
  }
  template <class Op>
  bool start_op(Op& op);
  void run_action(const stream_action& a, operation_list& done);
  template <class Op>
  bool begin_here(Op& op, bool wait);
  template <class Op>
  void run_op_here(Op& op, bool wait);
  bool is_finished(const stream_operation& op) const;
  bool is_closed() const;
  void fill(const stream_action& a);
  void expose(stream_write& write);
  void pull(const stream_action& a);
  void take(const stream_action& a);
  void pull_direct(const stream_action& a);
  bool withdraw_op(stream_operation& op);
  void end_write(stream_writing& op, operation_list& done);
  void end_withdrawn(stream_operation& op, operation_list& done);
  void finish(stream_operation& op, const error_code& ec, std::uint64_t bytes,
              operation_list& done);
  void ended(stream_operation& op, std::uint64_t bytes, operation_list& done);
  void withdraw_all(operation_list& done);
  void look_here();
  void wait_for(stream_operation& op);
  void give_up(stream_operation& op, const error_code& why);
  bool find_keys(stream_operation& op) const;
  void choose_way(stream_writing& op) const;
  bool lend(stream_writing& op) const;
  bool wait_for_peer(operation_list& done);
  void wait_anew() noexcept;
  bool waits_for_answer() const noexcept;
  std::chrono::milliseconds patience() const noexcept;
  void count_wait(protocol_clock::time_point now) noexcept;
  bool has_time() const noexcept;
  std::uint64_t signs_of_peer() const noexcept;
  bool may_progress(protocol_clock::time_point now) const noexcept;
  void look();
  void look_later();

  stream_options stream_options_;
  std::chrono::milliseconds usual_linger_;
  asio::socket_base::linger linger_option_;
  std::unique_ptr<closer> closer_;
  std::unique_ptr<holder> holder_;
  std::uint64_t signs_ = 0;                         // the last value of `signs_of_peer`
  std::optional<protocol_clock::time_point> waits_; // the beginning of the wait for the peer to
                                                    // take bytes
  std::optional<protocol_clock::time_point> asked_; // when the peer was asked during the wait
  bool withdrawing_ = false;                        // the wait is for the answer to a withdrawal
  bool looking_ = false;                            // the timer `look` is set
  std::optional<protocol_clock::time_point> leaving_since_; // since then the context shuts down
  std::optional<stream_protocol> bytes_;
  std::vector<registered_buffer> blocks_; // the memory of the protocol's blocks
  std::vector<std::unique_ptr<chunk>> chunks_;
  std::unique_ptr<direct_pull> direct_;
  operation_list active_; // the pending operations, to be found by id
  std::size_t error_waits_ = 0;
  connection_info info_;
  bool no_delay_ = false;
  bool closed_ = false; // by its user; it does not fail for another reason
  std::uint64_t framed_before_close_ = 0;
  protocol_clock::duration waited_{}; // since the close, until the peer's last sign
  bool known_ = false;                // `info_` is known
};

} // namespace asio_rdma::detail
