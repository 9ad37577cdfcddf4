// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/handler_op.hpp>
#include <asio_rdma/detail/memory/access_service.hpp>
#include <boost/asio/detail/handler_tracking.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace asio_rdma::detail {

/// An `access_operation` with its handler.
template <class Handler, class IoExecutor>
class access_op final : public access_operation BOOST_ASIO_ALSO_INHERIT_TRACKED_HANDLER {
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
  using tracked = std::decay_t<decltype(asio::prefer(std::declval<const IoExecutor&>(),
                                                     asio::execution::outstanding_work.tracked))>;

  // The completion step, posted to the I/O executor. It owns the operation until it runs.
  class turn {
  public:
    using allocator_type = operation_allocator<void>;

    explicit turn(access_op& op) noexcept : op_(&op) {}

    allocator_type get_allocator() const noexcept { return {}; }
    void operator()() { op_.release()->call(); }

  private:
    struct deleter {
      void operator()(access_op* op) const noexcept { op->give_up(); }
    };

    std::unique_ptr<access_op, deleter> op_;
  };

  access_op(Handler& handler, const IoExecutor& ex, access_service& waits_at)
      : access_operation(&access_op::take_step, waits_at),
        plain_(plain_context(ex) != nullptr),
        io_work_(asio::prefer(ex, asio::execution::outstanding_work.tracked)),
        work_(handler, io_executor<IoExecutor>(ex)),
        handler_(std::move(handler)) {}

  static void take_step(access_operation* base, step what) {
    auto& self = *static_cast<access_op*>(base);
    if (what == step::destroy)
      return self.give_up();
    if (what == step::complete && self.plain_)
      return self.call();
    const tracked io_work(self.io_work_); // the operation may be destroyed before this function
                                          // returns
    if (what == step::complete)
      asio::dispatch(io_work, turn(self));
    else
      asio::post(io_work, [at = &self.service, which = self.id] { at->run(which); });
  }

  // The operation's memory is released before the handler is destroyed: the handler may own the
  // resource of its allocator.
  void give_up() noexcept {
    BOOST_ASIO_HANDLER_COMPLETION((*this));
    allocator_type alloc(asio::get_associated_allocator(handler_, operation_allocator<void>()));
    [[maybe_unused]] const tracked io_work(std::move(io_work_));
    [[maybe_unused]] const Handler handler(std::move(handler_));
    const buffer_access access_of_it(std::move(access));
    free(alloc);
  }

  void call() {
    BOOST_ASIO_HANDLER_COMPLETION((*this));
    allocator_type alloc(asio::get_associated_allocator(handler_, operation_allocator<void>()));
    [[maybe_unused]] const tracked io_work(std::move(io_work_));
    handler_work<Handler, IoExecutor> work(std::move(work_));
    Handler handler(std::move(handler_));
    buffer_access granted(std::move(access));
    error_code ec;
    if (aborted) {
      ec = asio::error::operation_aborted;
      granted.reset();
    }
    free(alloc);
    BOOST_ASIO_HANDLER_INVOCATION_BEGIN((ec));
    if (work.is_plain())
      std::move(handler)(ec, std::move(granted));
    else
      work.dispatch(bound_handler<Handler, error_code, buffer_access>(std::move(handler), ec,
                                                                      std::move(granted)));
    BOOST_ASIO_HANDLER_INVOCATION_END;
  }

  void free(allocator_type& alloc) noexcept {
    this->~access_op();
    std::allocator_traits<allocator_type>::deallocate(alloc, this, 1);
  }

  const bool plain_;
  tracked io_work_;
  handler_work<Handler, IoExecutor> work_;
  Handler handler_;
};

} // namespace asio_rdma::detail
