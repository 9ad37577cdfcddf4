// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <boost/asio/execution_context.hpp>

#include <cstdint>
#include <memory>

namespace asio_rdma::detail {
class shared_receives_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

/// Options of `shared_receives`.
struct shared_receives_options {
  shared_receives_options() {
  } // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// The number of posted receives in total, up to the device's limit: `per_link` of them for each
  /// link.
  std::uint32_t receives = 1024;
  std::uint32_t receive_size = 4096; ///< Bytes of each, at least 64; 16 of them are not payload.
  /// Receives reserved for each open connection and stream, at least 5. The peer may send as many
  /// frames before this side answers; 3 of them are the library's own. While received data waits
  /// for its reader, other receives replace those that hold it, if some are left. A link thus has
  /// at most `connection_options::receives` or `stream_options::receives` in total.
  std::uint32_t per_link = 6;

  /// Each sets the member of its name and returns the options:
  /// `shared_receives_options().set_receives(…)`. Calls can be chained.
  ///@{
  shared_receives_options& set_receives(std::uint32_t value) {
    return detail::set(*this, receives, value);
  }
  shared_receives_options& set_receive_size(std::uint32_t value) {
    return detail::set(*this, receive_size, value);
  }
  shared_receives_options& set_per_link(std::uint32_t value) {
    return detail::set(*this, per_link, value);
  }
  ///@}
};

/// The use of shared receives at one time.
struct shared_receives_statistics {
  std::uint32_t links = 0;   ///< Connections and streams that share the receives.
  std::uint32_t room = 0;    ///< Additional ones that could share the receives.
  std::uint32_t posted = 0;  ///< Receives that the device has.
  std::uint32_t missing = 0; ///< Receives for which the pool has no memory.
  /// Connections and streams that have ended without the device's report that they use no receive
  /// any more (IBV_EVENT_QP_LAST_WQE_REACHED). The device may have lost receives of theirs, which
  /// `posted` still counts. The next one that is opened while no other is open restores them, and
  /// this number is 0 again.
  std::uint32_t unconfirmed = 0;
};

/// Receives that connections and streams of one execution context share (ibv_create_srq(3)), with
/// memory of one pool, so that an idle connection costs little. A cheap, shared handle: copies
/// refer to the same receives, which live until the last copy and the last connection or stream
/// that uses them are destroyed. Safe from any thread.
///
/// Each connection or stream has some receives reserved for itself
/// (`shared_receives_options::per_link`). So none waits for a slow reader of another one, and no
/// message ever lacks a receive: if too few receives are left, `open` fails. All of them use one
/// completion queue.
///
/// A connection or stream ends when the device reports that its queue pair uses no receive any
/// more (IBV_EVENT_QP_LAST_WQE_REACHED), so `close` may take some milliseconds: with adapters up to
/// 25. If no such report comes for a second, the queue pair is destroyed without its own, and
/// `shared_receives_statistics::unconfirmed` counts it. A device that has never reported one is
/// given 50 ms from then on. Those that end at one moment, for example because a peer has ended,
/// wait together; calls of `close` wait one after another. The end of the receives, and that of
/// the context, begin no wait.
class shared_receives {
public:
  /// A handle without receives. Every other member but `is_open`, `close` and assignment needs
  /// receives.
  shared_receives() noexcept = default;

  /// Posts receives with memory of the pool. All of them use the given completion queue. If none is
  /// given, they use a completion queue of the context with room for as many links as possible,
  /// within the device's limits. Errors: `bad_descriptor` for a pool that is not open or is of a
  /// protection domain that is not open, `invalid_argument` for the options or a completion queue
  /// of another context, `operation_not_supported` if the device has no shared receive queues,
  /// `error::completion_queue_full`, `error::wrong_device`, those of `memory_pool::allocate`, or
  /// the system's.
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const completion_queue& queue, const shared_receives_options& options,
                  error_code& ec);
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const shared_receives_options& options, error_code& ec)
      : shared_receives(context, pool, completion_queue(), options, ec) {}
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const completion_queue& queue, const shared_receives_options& options = {});
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const shared_receives_options& options = {})
      : shared_receives(context, pool, completion_queue(), options) {}

  bool is_open() const noexcept;
  const memory_pool& pool() const noexcept;
  /// The options in force.
  const shared_receives_options& options() const noexcept;
  shared_receives_statistics statistics() const;

  /// Ends the connections and streams that use the receives with `error::shared_receives_closed`.
  /// No further ones can be opened with them.
  void close();

  const std::shared_ptr<detail::shared_receives_impl>& impl() const noexcept { return impl_; }

private:
  std::shared_ptr<detail::shared_receives_impl> impl_;
};

} // namespace asio_rdma
#pragma GCC visibility pop
