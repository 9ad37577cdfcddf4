// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/asio/async_result.hpp>

#include <coroutine>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace asio_rdma {

/// The type of `use_awaiter`.
struct use_awaiter_t {};

/// A completion token for coroutines of any type but `asio::awaitable`: those of the program, and
/// of libraries whose promises do not limit what is awaited. The initiating function returns an
/// awaiter, to be awaited once:
///
///     const std::size_t n = co_await qp.async_receive(buffer, asio_rdma::use_awaiter);
///
/// The awaiter is a part of the coroutine's frame. It starts the operation when it is awaited, with
/// a handler that resumes the coroutine, so an operation costs little more than one with a
/// callback. (In `asio::awaitable`, use `asio::deferred`.) The token suits every operation of Asio.
///
/// The value of `co_await` has the handler's arguments: nothing, one value, or a tuple. A leading
/// error code or `std::exception_ptr` is not a part of it: an error is thrown, as
/// `boost::system::system_error` or as the exception. With `asio::as_tuple(use_awaiter)` nothing is
/// thrown, and the value is a tuple of all arguments.
///
/// If the coroutine's promise has `get_executor()`, `get_cancellation_slot()` or `get_allocator()`,
/// these are what the handler is associated with (Asio, "Associated Executors" and so on).
/// Otherwise the coroutine is resumed by the executor of the I/O object.
///
/// The coroutine may not be destroyed while it waits: cancel the operation first, and run the
/// context. If the context is destroyed, the handler is destroyed without a call, and the coroutine
/// is not resumed. Then its owner may destroy it, provided that no I/O object is in its frame, as
/// that would outlive the context.
///
/// An operation that completes before the initiating function returns, such as `asio::dispatch` on
/// the running executor, resumes the coroutine from inside `co_await`: a loop of such operations
/// uses more of the stack each time. The operations of this library do that only with an immediate
/// executor (`asio::bind_immediate_executor`) that calls handlers at once.
inline constexpr use_awaiter_t use_awaiter{};

namespace detail {

/// A coroutine that waits.
template <class Promise>
struct waiting_coroutine {
  std::coroutine_handle<Promise> coroutine;
};

/// Each passes on to the operation what the coroutine's promise has.
///@{
template <class Promise, class Base>
struct with_executor : Base {};
template <class Promise, class Base>
requires requires(Promise& p) { p.get_executor(); }
struct with_executor<Promise, Base> : Base {
  using executor_type = std::decay_t<decltype(std::declval<Promise&>().get_executor())>;
  executor_type get_executor() const noexcept { return this->coroutine.promise().get_executor(); }
};

template <class Promise, class Base>
struct with_slot : Base {};
template <class Promise, class Base>
requires requires(Promise& p) { p.get_cancellation_slot(); }
struct with_slot<Promise, Base> : Base {
  using cancellation_slot_type =
      std::decay_t<decltype(std::declval<Promise&>().get_cancellation_slot())>;
  cancellation_slot_type get_cancellation_slot() const noexcept {
    return this->coroutine.promise().get_cancellation_slot();
  }
};

template <class Promise, class Base>
struct with_allocator : Base {};
template <class Promise, class Base>
requires requires(Promise& p) { p.get_allocator(); }
struct with_allocator<Promise, Base> : Base {
  using allocator_type = std::decay_t<decltype(std::declval<Promise&>().get_allocator())>;
  allocator_type get_allocator() const noexcept {
    return this->coroutine.promise().get_allocator();
  }
};
///@}

template <class Promise>
using associated_with_promise =
    with_allocator<Promise, with_slot<Promise, with_executor<Promise, waiting_coroutine<Promise>>>>;

/// The value of `co_await`: the arguments without a leading error, which is thrown.
///@{
template <class... Values>
auto value_of(std::tuple<Values...>&& values) {
  if constexpr (sizeof...(Values) == 1)
    return std::get<0>(std::move(values));
  else if constexpr (sizeof...(Values) != 0)
    return std::move(values);
}
template <class First, class... Values>
auto value_or_throw(std::tuple<First, Values...>&& all) {
  if constexpr (std::is_same_v<First, error_code> || std::is_same_v<First, std::exception_ptr>) {
    if (std::get<0>(all)) {
      if constexpr (std::is_same_v<First, error_code>)
        throw boost::system::system_error(std::get<0>(all));
      else
        std::rethrow_exception(std::get<0>(std::move(all)));
    }
    return std::apply(
        [](First&, Values&... values) {
          return value_of(std::tuple<Values...>(std::move(values)...));
        },
        all);
  } else {
    return value_of(std::move(all));
  }
}
inline void value_or_throw(std::tuple<>&&) noexcept {}
///@}

template <class Initiation, class Signature, class... Args>
class awaiter;

/// An operation that starts when it is awaited.
template <class Initiation, class... Results, class... Args>
class [[nodiscard]] awaiter<Initiation, void(Results...), Args...> {
public:
  template <class Init, class... Given>
  explicit awaiter(Init&& initiation, Given&&... args)
      : initiation_(std::forward<Init>(initiation)), args_(std::forward<Given>(args)...) {}

  bool await_ready() const noexcept { return false; }

  // Once the operation has started, another thread may resume the coroutine, which may destroy this
  // object. So only locals are used then. Clang before 17 may keep the locals of an inlined
  // function in the coroutine's frame (llvm-project, issue 56301).
  template <class Promise>
#if defined(__clang__)
  [[gnu::noinline]]
#endif
  void
  await_suspend(std::coroutine_handle<Promise> coroutine) {
    Initiation initiation(std::move(initiation_));
    std::tuple<Args...> args(std::move(args_));
    std::apply(
        [&](Args&... each) {
          std::move(initiation)(handler<Promise>{{{{{coroutine}}}}, this}, std::move(each)...);
        },
        args);
  }

  auto await_resume() { return value_or_throw(std::move(*results_)); }

private:
  template <class Promise>
  struct handler : associated_with_promise<Promise> {
    awaiter* self;

    void operator()(Results... results) {
      self->results_.emplace(std::move(results)...);
      if constexpr (requires { this->get_cancellation_slot(); })
        this->get_cancellation_slot().clear(); // the operation may have left a pointer to itself
      this->coroutine.resume();
    }
  };

  Initiation initiation_;
  std::tuple<Args...> args_;
  std::optional<std::tuple<std::decay_t<Results>...>> results_;
};

} // namespace detail
} // namespace asio_rdma

namespace boost::asio {

template <class Signature>
class async_result<asio_rdma::use_awaiter_t, Signature> {
public:
  template <class Initiation, class Token, class... Args>
  static auto initiate(Initiation&& initiation, Token&&, Args&&... args) {
    return asio_rdma::detail::awaiter<std::decay_t<Initiation>, Signature, std::decay_t<Args>...>(
        std::forward<Initiation>(initiation), std::forward<Args>(args)...);
  }
};

} // namespace boost::asio
