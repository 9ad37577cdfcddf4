// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/detail/shared_receives_impl.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/shared_receives_options.hpp>
#include <boost/asio/execution_context.hpp>

#include <memory>

namespace asio_rdma {

/// Receives that connections and streams of one execution context share (ibv_create_srq(3)), with
/// memory of one pool, so that one that is idle costs little. A cheap, shared handle: copies mean
/// the same receives, which last until the last copy and the last connection or stream that uses
/// them are gone. Safe from any thread.
///
/// Each that uses them has some for itself (`shared_receives_options::per_link`), so none waits for
/// a reader of another, and no message ever lacks a receive: where so many are not left, it is
/// not opened. All of them use one completion queue.
class shared_receives {
public:
  /// None; every other member but `is_open`, `close` and assignment needs some.
  shared_receives() noexcept = default;

  /// Posts receives for memory of the pool's device. All use the completion queue; if none is
  /// given, one of the context's that has room for as many as there can be, if the device has such
  /// long ones. Errors: `bad_descriptor` for no pool or one of a protection domain that is not
  /// open, `invalid_argument` for the options or a completion queue of another context,
  /// `operation_not_supported` where the device has no shared receives,
  /// `error::completion_queue_full`, `error::wrong_device`, those of `memory_pool::allocate`, or
  /// the system's.
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const completion_queue& queue, const shared_receives_options& options,
                  error_code& ec)
      : impl_(detail::shared_receives_impl::make(context, pool, queue.impl(), options, ec)) {}
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const shared_receives_options& options, error_code& ec)
      : shared_receives(context, pool, completion_queue(), options, ec) {}
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const completion_queue& queue, const shared_receives_options& options = {}) {
    error_code ec;
    impl_ = detail::shared_receives_impl::make(context, pool, queue.impl(), options, ec);
    detail::throw_if(ec, "shared_receives");
  }
  shared_receives(asio::execution_context& context, const memory_pool& pool,
                  const shared_receives_options& options = {})
      : shared_receives(context, pool, completion_queue(), options) {}

  bool is_open() const noexcept { return impl_ != nullptr && impl_->is_open(); }
  const memory_pool& pool() const noexcept { return impl_->pool(); }
  /// The options in force.
  const shared_receives_options& options() const noexcept { return impl_->options(); }
  shared_receives_statistics statistics() const { return impl_->statistics(); }

  /// Ends the connections and streams that use them with `error::shared_receives_closed`; none can
  /// be opened with them any more.
  void close() {
    if (impl_)
      impl_->close();
  }

  const std::shared_ptr<detail::shared_receives_impl>& impl() const noexcept { return impl_; }

private:
  std::shared_ptr<detail::shared_receives_impl> impl_;
};

} // namespace asio_rdma
