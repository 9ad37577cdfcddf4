// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/detail/queues/results.hpp>
#include <asio_rdma/detail/queues/shared_receive_queue_face.hpp>
#include <asio_rdma/detail/verbs/wrong_call.hpp>
#include <asio_rdma/queue_pair.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

namespace asio_rdma {

/// Options of a shared receive queue. A lower limit of the device takes precedence.
struct shared_receive_queue_options {
  std::uint32_t depth = 1024; ///< Receives posted at a time, at least 1; more wait their turn.
  std::uint32_t max_sge = 4;  ///< Buffers in one receive.

  /// Each sets the member of its name and returns the options:
  /// `shared_receive_queue_options().set_depth(…)`. Calls can be chained.
  ///@{
  shared_receive_queue_options& set_depth(std::uint32_t value) {
    return detail::set(*this, depth, value);
  }
  shared_receive_queue_options& set_max_sge(std::uint32_t value) {
    return detail::set(*this, max_sge, value);
  }
  ///@}
};

/// An Asio I/O object with receives that several queue pairs share (ibv_create_srq(3)). A message
/// for any of these queue pairs takes the next receive; `received::queue_pair_number` identifies
/// the queue pair. The shared receive queue and its queue pairs use one completion queue.
///
/// Errors, cancellation and thread safety as for `basic_queue_pair`, with two exceptions. Only
/// `close` cancels a posted receive, because another queue pair may be filling it. The end of one
/// queue pair does not affect the others' receives: it waits until the device reports that the
/// queue pair uses no receive any more (IBV_EVENT_QP_LAST_WQE_REACHED), with adapters up to 25 ms,
/// and at most a second after the latest such report, 10 s in all. If the report does not come, the
/// device may have lost receives. They are posted again, to a new verbs object, by the next queue
/// pair that is opened on the queue while no other one uses it.
template <class Executor = asio::any_io_executor>
class basic_shared_receive_queue {
  using impl_type = detail::shared_receive_queue_impl;

public:
  using executor_type = Executor;
  using native_handle_type = ibv_srq*;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_shared_receive_queue<Executor1>;
  };

  /// A shared receive queue that is not open.
  explicit basic_shared_receive_queue(const executor_type& ex) : io_(ex) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_shared_receive_queue(ExecutionContext& context) : io_(context.get_executor()) {}
  /// Opens: see `open`.
  template <class ExecutorOrContext>
  basic_shared_receive_queue(ExecutorOrContext&& ex, const protection_domain& pd,
                             const shared_receive_queue_options& options = {})
      : basic_shared_receive_queue(std::forward<ExecutorOrContext>(ex)) {
    open(pd, completion_queue(), options);
  }

  /// The moved-from object is closed.
  basic_shared_receive_queue(basic_shared_receive_queue&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor>
  basic_shared_receive_queue(basic_shared_receive_queue<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_shared_receive_queue& operator=(basic_shared_receive_queue&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  /// As `close`.
  ~basic_shared_receive_queue() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }

  /// Errors: `already_open`, `bad_descriptor` for a protection domain that is not open,
  /// `operation_not_supported` where the device has none,
  /// `error::completion_queue_full`, `error::wrong_device`, `invalid_argument` for a completion
  /// queue of another execution context, or the system's.
  void open(const protection_domain& pd, const completion_queue& queue,
            const shared_receive_queue_options& options, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::open_shared_receive_queue(io_.context(), pd, options, queue.impl(), ec);
    });
  }
  void open(const protection_domain& pd, const completion_queue& queue = {},
            const shared_receive_queue_options& options = {}) {
    error_code ec;
    open(pd, queue, options, ec);
    detail::throw_if(ec, "shared_receive_queue::open");
  }

  /// Adopts an empty queue of the protection domain, for queue pairs that use the given completion
  /// queue, or the one that the context's queue pairs share. `options` must be those that the queue
  /// was made with, because not every device reports them. The queue is destroyed at close; after
  /// an error the caller still owns it. Errors: as `open`; `invalid_argument` for null or a queue
  /// of another domain.
  void assign(const protection_domain& pd, const completion_queue& queue, native_handle_type srq,
              const shared_receive_queue_options& options, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::adopt_shared_receive_queue(io_.context(), pd, options, queue.impl(), srq, ec);
    });
  }
  void assign(const protection_domain& pd, const completion_queue& queue, native_handle_type srq,
              const shared_receive_queue_options& options) {
    error_code ec;
    assign(pd, queue, srq, options, ec);
    detail::throw_if(ec, "shared_receive_queue::assign");
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// Opening a queue pair may replace the handle, but not while another queue pair uses it, nor one
  /// that was adopted.
  native_handle_type native_handle() const noexcept {
    return impl_ ? detail::native_handle(*impl_) : nullptr;
  }
  const std::shared_ptr<impl_type>& impl() const noexcept { return impl_; }

  /// Ends the operations with `operation_aborted`: those that wait for room at once, posted ones
  /// when the last queue pair that uses this queue has been closed. Posted ones end with
  /// `error::device_keeps_memory` if the device refuses to destroy that queue pair or this queue.
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }

  /// Cancels the operations that wait for room, and those of `async_wait_limit`.
  void cancel() {
    if (impl_)
      detail::cancel(*impl_);
  }

  /// Posts a receive (RECEIVE). Errors: `asio::error::connection_reset` if the queue pair that took
  /// the receive failed before it was filled; `error::device_fatal`, `device_removed` or
  /// `queue_pair_fatal` after an error of this queue or of its completion queue. These two are
  /// reported when the last queue pair that uses the queue has ended; the queue must then be
  /// closed. `operation_not_supported` for device-only memory without
  /// `device::has_device_only_receives`.
  template <mutable_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive(const Buffers& buffers, Token&& token = {}) {
    return detail::begin_async<Token, detail::receive_result::signature>(
        detail::initiate_request<detail::receive_operation, detail::receive_result,
                                 basic_shared_receive_queue>{this},
        token, detail::receive_request<detail::max_elements<Buffers>()>(buffers));
  }

  /// Waits until fewer than `limit` receives are posted (ibv_modify_srq(3)). Only one limit is in
  /// force: a later call replaces the limit of all pending waits. Errors: `bad_descriptor` if not
  /// open, `operation_aborted`, or the system's. Cancellation: all types.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_limit(std::uint32_t limit, Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(initiate_wait{this}, token, limit);
  }

  /// This overload explains a call with wrong arguments.
  template <class Memory, class... Rest>
  requires(!mutable_buffer_sequence<Memory>) detail::wrong_call
      async_receive(const Memory&, const Rest&...) {
    return detail::wrong_registered_target<Memory>();
  }

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_shared_receive_queue;

  // The initiation of an operation, which uses `impl_` and `io_`.
  template <class, class, class>
  friend struct detail::initiate_request;

  struct initiate_wait : detail::initiation<basic_shared_receive_queue> {
    template <class Handler>
    void operator()(Handler&& handler, std::uint32_t limit) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::operation, detail::no_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [limit](impl_type& i, auto& op) { return detail::start_wait_limit(i, op, limit); });
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using shared_receive_queue = basic_shared_receive_queue<>;

} // namespace asio_rdma
