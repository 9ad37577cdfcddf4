// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/access_service.hpp>
#include <asio_rdma/detail/handler_op.hpp>

#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// An `access_operation` with its handler.
template <class Handler, class IoExecutor>
class access_op final : public access_operation {
public:
  using allocator_type = typename std::allocator_traits<asio::associated_allocator_t<
      Handler, operation_allocator<void>>>::template rebind_alloc<access_op>;

  static access_op* make(Handler& handler, const IoExecutor& io, access_service& waits_at) {
    allocator_type alloc(asio::get_associated_allocator(handler, operation_allocator<void>()));
    access_op* op = std::allocator_traits<allocator_type>::allocate(alloc, 1);
    try {
      return ::new (static_cast<void*>(op)) access_op(handler, io, waits_at);
    } catch (...) {
      std::allocator_traits<allocator_type>::deallocate(alloc, op, 1);
      throw;
    }
  }

private:
  template <class Executor>
  using tracked = std::decay_t<decltype(asio::prefer(std::declval<const Executor&>(),
                                                     asio::execution::outstanding_work.tracked))>;
  using handler_executor = asio::associated_executor_t<Handler, IoExecutor>;

  access_op(Handler& handler, const IoExecutor& io, access_service& waits_at)
      : access_operation(&access_op::finish_this, waits_at),
        io_work_(asio::prefer(io, asio::execution::outstanding_work.tracked)),
        work_(asio::prefer(asio::get_associated_executor(handler, io),
                           asio::execution::outstanding_work.tracked)),
        handler_(std::move(handler)) {}

  // The memory is freed before the handler goes, which may own what the destruction needs.
  static void finish_this(access_operation* base, outcome how) {
    auto* self = static_cast<access_op*>(base);
    allocator_type alloc(
        asio::get_associated_allocator(self->handler_, operation_allocator<void>()));
    const tracked<IoExecutor> io_work(std::move(self->io_work_));
    const tracked<handler_executor> work(std::move(self->work_));
    Handler handler(std::move(self->handler_));
    buffer_access access(std::move(self->access));
    self->~access_op();
    std::allocator_traits<allocator_type>::deallocate(alloc, self, 1);
    if (how == outcome::destroyed)
      return;
    error_code ec;
    if (how == outcome::aborted) {
      ec = asio::error::operation_aborted;
      access.reset();
    }
    asio::post(work, bound_handler<Handler, error_code, buffer_access>(std::move(handler), ec,
                                                                       std::move(access)));
  }

  tracked<IoExecutor> io_work_;
  tracked<handler_executor> work_;
  Handler handler_;
};

} // namespace asio_rdma::detail
