// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/core/operation_group.hpp>
#include <asio_rdma/detail/core/operation_memory.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/detail/handler_tracking.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/version.hpp>
#if BOOST_VERSION >= 108200
#include <boost/asio/associated_immediate_executor.hpp>
#endif

#include <cstddef>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

namespace asio_rdma::detail {

/// The context, if `ex` is its plain executor: a thread that runs the context may then call a
/// handler without asking the executor. Otherwise null.
template <class Executor>
asio::io_context* plain_context(const Executor& ex) noexcept {
  if constexpr (std::is_same_v<Executor, asio::io_context::executor_type>) {
    return &asio::query(ex, asio::execution::context);
  } else if constexpr (std::is_same_v<Executor, asio::any_io_executor>) {
    if (const auto* inner = ex.template target<asio::io_context::executor_type>())
      return &asio::query(*inner, asio::execution::context);
  }
  return nullptr;
}

/// The executor of an I/O object, with properties that each operation needs.
template <class Executor>
class io_executor {
public:
  explicit io_executor(const Executor& ex) noexcept : executor_(ex), plain_(plain_context(ex)) {}
  /// For an I/O object whose operations complete on the context `completing`, perhaps not that of
  /// `ex`.
  io_executor(const Executor& ex, const asio::execution_context& completing) noexcept
      : executor_(ex), plain_(&context() == &completing ? plain_context(ex) : nullptr) {}
  // Copied, never moved, so that a moved-from I/O object still has its executor.
  io_executor(const io_executor&) = default;
  io_executor& operator=(const io_executor&) = default;

  const Executor& get() const noexcept { return executor_; }
  asio::io_context* plain() const noexcept { return plain_; }
  asio::execution_context& context() const noexcept {
    return asio::query(executor_, asio::execution::context);
  }

private:
  Executor executor_;
  asio::io_context* plain_;
};

/// A handler with its arguments. It has the handler's associated allocator only: the associated
/// executor has been asked already.
template <class Handler, class... Args>
class bound_handler {
public:
  using allocator_type = asio::associated_allocator_t<Handler, operation_allocator<void>>;

  bound_handler(Handler&& handler, Args... args)
      : handler_(std::move(handler)), args_(std::move(args)...) {}

  allocator_type get_allocator() const noexcept {
    return asio::get_associated_allocator(handler_, operation_allocator<void>());
  }

  void operator()() { std::apply(std::move(handler_), std::move(args_)); }

private:
  Handler handler_;
  std::tuple<Args...> args_;
};

/// The executor of a handler, kept from the start of the operation to its end. If that is the I/O
/// object's own context, the completion queue counts the work of all its operations, and this
/// object counts none.
template <class Handler, class IoExecutor>
class handler_work {
public:
  handler_work(const Handler& handler, const io_executor<IoExecutor>& io) {
    if constexpr (has_no_executor) {
      plain_ = io.plain();
      if (plain_ == nullptr)
        keep(io.get());
    } else {
      const executor_type ex = asio::get_associated_executor(handler, io.get());
      plain_ = plain_context(ex);
      if (plain_ != io.plain())
        plain_ = nullptr;
      if (plain_ == nullptr)
        keep(ex);
    }
  }
  handler_work(handler_work&& other) noexcept : plain_(other.plain_) {
    if (plain_ == nullptr)
      ::new (static_cast<void*>(&kept_)) kept_type(std::move(other.kept_));
  }
  ~handler_work() {
    if (plain_ == nullptr) [[unlikely]]
      kept_.~kept_type();
  }

  /// Whether a thread that runs the context may call the handler directly.
  bool is_plain() const noexcept { return plain_ != nullptr; }
  /// Unless that is so.
  const handler_executor& executor() const noexcept { return kept_; }

  template <class Function>
  void dispatch(Function&& f) {
    if (plain_ != nullptr)
      asio::dispatch(*plain_, std::forward<Function>(f));
    else
      asio::dispatch(kept_.executor, std::forward<Function>(f));
  }

private:
  // Asio's marker of handlers without an associated executor. If Asio lacks it, every handler is
  // asked.
  static constexpr bool has_no_executor = requires {
    typename asio::associated_executor<Handler,
                                       IoExecutor>::asio_associated_executor_is_unspecialised;
  };
  using executor_type = asio::associated_executor_t<Handler, IoExecutor>;
  using kept_type = handler_executor_of<std::decay_t<decltype(asio::prefer(
      std::declval<const executor_type&>(), asio::execution::outstanding_work.tracked))>>;

  template <class Ex>
  void keep(const Ex& ex) {
    ::new (static_cast<void*>(&kept_))
        kept_type(asio::prefer(ex, asio::execution::outstanding_work.tracked));
  }

  asio::io_context* plain_ = nullptr;
  union {
    kept_type kept_; // only if plain_ is null
  };
};

/// Calls the handler of an operation that has completed at once, by its immediate executor, which
/// by default posts to the I/O executor. Boost 1.81 has no immediate executors and always posts.
template <class Handler, class IoExecutor, class... Args>
void complete_immediately(Handler&& handler, const IoExecutor& io, Args... args) {
#if BOOST_VERSION >= 108200
  const auto ex = asio::get_associated_immediate_executor(handler, io);
  asio::dispatch(ex, asio::append(std::forward<Handler>(handler), std::move(args)...));
#else
  asio::post(io, asio::append(std::forward<Handler>(handler), std::move(args)...));
#endif
}

/// The handler's first argument after the error code, if that is a number of bytes, which
/// Boost.Asio's handler tracking shows.
template <class Arguments>
inline constexpr bool is_byte_count = std::is_same_v<Arguments, std::tuple<std::size_t>>;

/// An operation of kind `Base` with its handler. `Result::arguments(const operation&)` returns the
/// handler's arguments after the error code, as a tuple.
template <class Base, class Result, class Handler, class IoExecutor, std::size_t Buffers>
class handler_op final : public Base BOOST_ASIO_ALSO_INHERIT_TRACKED_HANDLER {
public:
  using allocator_type = typename std::allocator_traits<asio::associated_allocator_t<
      Handler, operation_allocator<void>>>::template rebind_alloc<handler_op>;

  /// Owns the operation until it has been started.
  class owner {
  public:
    owner(Handler& handler, const io_executor<IoExecutor>& io)
        : alloc_(asio::get_associated_allocator(handler, operation_allocator<void>())),
          op_(std::allocator_traits<allocator_type>::allocate(alloc_, 1)) {
      try {
        ::new (static_cast<void*>(op_)) handler_op(handler, io);
      } catch (...) {
        std::allocator_traits<allocator_type>::deallocate(alloc_, op_, 1);
        throw;
      }
    }
    owner(const owner&) = delete;
    ~owner() {
      if (op_ != nullptr)
        destroy(alloc_, op_);
    }

    handler_op* operator->() const noexcept { return op_; }
    handler_op& operator*() const noexcept { return *op_; }
    void release() noexcept { op_ = nullptr; }

    /// Frees the operation and returns its handler.
    Handler take_handler() {
      Handler handler(std::move(op_->handler_));
      destroy(alloc_, std::exchange(op_, nullptr));
      return handler;
    }

  private:
    allocator_type alloc_;
    handler_op* op_;
  };

  ibv_sge* sges() noexcept { return sges_.data(); }

private:
  handler_op(Handler& handler, const io_executor<IoExecutor>& io)
      : Base(&handler_op::dispose_this), work_(handler, io), handler_(std::move(handler)) {
    if (!work_.is_plain()) [[unlikely]]
      this->executor = &work_.executor();
    if constexpr (requires { Base::is_step(handler_); })
      this->continues = Base::is_step(handler_);
  }

  static void destroy(allocator_type& alloc, handler_op* self) noexcept {
    self->~handler_op();
    std::allocator_traits<allocator_type>::deallocate(alloc, self, 1);
  }

  // The operation's memory is released before the handler runs, so the handler's next operation can
  // reuse it. It is also released before the handler is destroyed: the handler may own the resource
  // of its allocator.
  static void dispose_this(operation* base, disposal how) {
    auto* self = static_cast<handler_op*>(base);
    if (how != disposal::complete_here || !self->work_.is_plain()) [[unlikely]] {
      dispose_elsewhere(self, how);
      return;
    }
    call(self);
  }

  [[gnu::always_inline]] static void call(handler_op* self) {
    BOOST_ASIO_HANDLER_COMPLETION((*self));
    allocator_type alloc(
        asio::get_associated_allocator(self->handler_, operation_allocator<void>()));
    Handler handler(std::move(self->handler_));
    const error_code ec = self->ec;
    auto arguments = Result::arguments(*self);
    destroy(alloc, self);
    if constexpr (is_byte_count<decltype(arguments)>) {
      BOOST_ASIO_HANDLER_INVOCATION_BEGIN((ec, std::get<0>(arguments)));
    } else {
      BOOST_ASIO_HANDLER_INVOCATION_BEGIN((ec));
    }
    std::apply([&](auto&... args) { std::move(handler)(ec, std::move(args)...); }, arguments);
    BOOST_ASIO_HANDLER_INVOCATION_END;
  }

  [[gnu::noinline]] static void dispose_elsewhere(handler_op* self, disposal how) {
    if (how == disposal::in_executor)
      return call(self);
    BOOST_ASIO_HANDLER_COMPLETION((*self));
    allocator_type alloc(
        asio::get_associated_allocator(self->handler_, operation_allocator<void>()));
    Handler handler(std::move(self->handler_));
    if (how == disposal::destroy) {
      destroy(alloc, self);
      return;
    }
    handler_work<Handler, IoExecutor> work(std::move(self->work_));
    [[maybe_unused]] const error_code ec = self->ec; // for the handler tracking
    auto bound = std::apply(
        [&](auto&&... args) {
          return bound_handler<Handler, error_code, std::decay_t<decltype(args)>...>(
              std::move(handler), self->ec, std::move(args)...);
        },
        Result::arguments(*self));
    destroy(alloc, self);
    BOOST_ASIO_HANDLER_INVOCATION_BEGIN((ec));
    work.dispatch(std::move(bound));
    BOOST_ASIO_HANDLER_INVOCATION_END;
  }

  handler_work<Handler, IoExecutor> work_;
  Handler handler_;
  std::array<ibv_sge, Buffers> sges_;
};

} // namespace asio_rdma::detail
