// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/access_service.hpp>
#include <asio_rdma/detail/handler_op.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
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
  using tracked = std::decay_t<decltype(asio::prefer(std::declval<const IoExecutor&>(),
                                                     asio::execution::outstanding_work.tracked))>;

  // Gives what is posted the memory that the operation has for it.
  template <class T>
  class reserved_allocator {
  public:
    using value_type = T;

    explicit reserved_allocator(access_op& op) noexcept : op_(&op) {}
    template <class U>
    reserved_allocator(const reserved_allocator<U>& other) noexcept : op_(other.op_) {}

    T* allocate(std::size_t n) {
      if (n * sizeof(T) <= sizeof op_->reserve_ && alignof(T) <= alignof(std::max_align_t))
        return static_cast<T*>(static_cast<void*>(op_->reserve_.data()));
      return operation_allocator<T>().allocate(n);
    }
    void deallocate(T* p, std::size_t n) noexcept {
      if (static_cast<void*>(p) != static_cast<void*>(op_->reserve_.data()))
        operation_allocator<T>().deallocate(p, n);
    }

    template <class U>
    bool operator==(const reserved_allocator<U>& other) const noexcept {
      return op_ == other.op_;
    }

  private:
    template <class>
    friend class reserved_allocator;

    access_op* op_;
  };

  // Its turn on the I/O executor; owns it until then.
  class turn {
  public:
    using allocator_type = reserved_allocator<void>;

    explicit turn(access_op& op) noexcept : alloc_(op), op_(&op) {}

    allocator_type get_allocator() const noexcept { return alloc_; }
    void operator()() { op_.release()->complete(); }

  private:
    struct deleter {
      void operator()(access_op* op) const noexcept { op->give_up(); }
    };

    allocator_type alloc_;
    std::unique_ptr<access_op, deleter> op_;
  };

  access_op(Handler& handler, const IoExecutor& ex, access_service& waits_at)
      : access_operation(&access_op::finish_this, waits_at),
        plain_(plain_context(ex)),
        io_work_(asio::prefer(ex, asio::execution::outstanding_work.tracked)),
        work_(handler, io_executor<IoExecutor>(ex)),
        handler_(std::move(handler)) {}

  // Not an allocation if the I/O executor is an io_context's.
  static void finish_this(access_operation* base, outcome how) {
    auto& self = *static_cast<access_op*>(base);
    if (how == outcome::destroyed)
      return self.give_up();
    self.aborted_ = how == outcome::aborted;
    if (self.plain_ != nullptr)
      return asio::post(self.plain_->get_executor(), turn(self));
    const tracked io_work(self.io_work_); // the operation may go before this is through
    asio::post(io_work, turn(self));
  }

  // The memory is freed before the handler goes, which may own what the destruction needs.
  void give_up() noexcept {
    allocator_type alloc(asio::get_associated_allocator(handler_, operation_allocator<void>()));
    const tracked io_work(std::move(io_work_));
    const Handler handler(std::move(handler_));
    const buffer_access access_of_it(std::move(access));
    free(alloc);
  }

  void complete() {
    allocator_type alloc(asio::get_associated_allocator(handler_, operation_allocator<void>()));
    const tracked io_work(std::move(io_work_));
    handler_work<Handler, IoExecutor> work(std::move(work_));
    Handler handler(std::move(handler_));
    buffer_access granted(std::move(access));
    error_code ec;
    if (aborted_) {
      ec = asio::error::operation_aborted;
      granted.reset();
    }
    free(alloc);
    if (work.is_plain())
      return std::move(handler)(ec, std::move(granted));
    work.dispatch(bound_handler<Handler, error_code, buffer_access>(std::move(handler), ec,
                                                                    std::move(granted)));
  }

  void free(allocator_type& alloc) noexcept {
    this->~access_op();
    std::allocator_traits<allocator_type>::deallocate(alloc, this, 1);
  }

  asio::io_context* const plain_;
  tracked io_work_;
  handler_work<Handler, IoExecutor> work_;
  bool aborted_ = false;
  Handler handler_;
  alignas(std::max_align_t) std::array<std::byte, 128> reserve_;
};

} // namespace asio_rdma::detail
