// SPDX-License-Identifier: BSL-1.0
// `use_awaiter` in coroutines that are not Asio's.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <asio_rdma/use_awaiter.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

namespace test::asio_awaiter_tests {
namespace {

/// A program's own kind of coroutine: starts at once, and is destroyed by its owner.
template <class Promise>
class coroutine_of {
public:
  using promise_type = Promise;

  explicit coroutine_of(std::coroutine_handle<Promise> h) : handle_(h) {}
  coroutine_of(coroutine_of&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  ~coroutine_of() {
    if (handle_)
      handle_.destroy();
  }

  bool done() const { return handle_.done(); }
  std::exception_ptr failure() const { return handle_.promise().failure; }

private:
  std::coroutine_handle<Promise> handle_;
};

struct usual_promise {
  std::exception_ptr failure;

  std::suspend_never initial_suspend() const noexcept { return {}; }
  std::suspend_always final_suspend() const noexcept { return {}; }
  void return_void() const noexcept {}
  void unhandled_exception() noexcept { failure = std::current_exception(); }
};

struct plain_promise : usual_promise {
  auto get_return_object() {
    return coroutine_of(std::coroutine_handle<plain_promise>::from_promise(*this));
  }
};
using plain_coroutine = coroutine_of<plain_promise>;

using strand_type = asio::strand<asio::io_context::executor_type>;

/// An allocator that counts.
template <class T>
struct counting_allocator {
  using value_type = T;
  int* count;

  explicit counting_allocator(int& n) : count(&n) {}
  template <class U>
  counting_allocator(const counting_allocator<U>& other) : count(other.count) {}
  T* allocate(std::size_t n) {
    ++*count;
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, std::size_t n) { std::allocator<T>().deallocate(p, n); }
  bool operator==(const counting_allocator&) const = default;
};

/// The executor, signal and allocations of a coroutine.
struct associations {
  strand_type strand;
  asio::cancellation_signal signal = {};
  int allocations = 0;
};

struct associated_promise : usual_promise {
  associations& with;

  template <class... Args>
  explicit associated_promise(associations& a, Args&&...) : with(a) {}
  auto get_return_object() {
    return coroutine_of(std::coroutine_handle<associated_promise>::from_promise(*this));
  }
  strand_type get_executor() const { return with.strand; }
  asio::cancellation_slot get_cancellation_slot() const { return with.signal.slot(); }
  counting_allocator<void> get_allocator() const {
    return counting_allocator<void>(with.allocations);
  }
};
using associated_coroutine = coroutine_of<associated_promise>;

/// Receives until an error ends it.
associated_coroutine receive_all(associations& with, queue_pair& from, mutable_buffer to,
                                 int& messages, error_code& end) {
  try {
    for (;;) {
      co_await from.async_receive(to, use_awaiter);
      CHECK(with.strand.running_in_this_thread());
      ++messages;
    }
  } catch (const system_error& e) {
    end = e.code();
  }
  CHECK(with.strand.running_in_this_thread());
}

associated_coroutine wait_once(associations&, asio::io_context& io, bool& waited) {
  asio::steady_timer soon(io, std::chrono::milliseconds(1));
  co_await soon.async_wait(use_awaiter);
  waited = true;
}

/// Starts an operation that completes by `io` with the values.
template <class Signature, class Token, class... Values>
auto async_values(asio::io_context& io, Token token, Values... values) {
  return asio::async_initiate<Token, Signature>(
      [&io](auto handler, Values... each) {
        asio::post(io, [h = std::move(handler), ... all = std::move(each)]() mutable {
          std::move(h)(std::move(all)...);
        });
      },
      token, std::move(values)...);
}

void finish(asio::io_context& io, const plain_coroutine& c) {
  until(io, [&] { return c.done(); });
  if (c.failure())
    std::rethrow_exception(c.failure());
}

std::uintptr_t stack_now() { return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)); }

} // namespace

TEST_CASE("a program's coroutine awaits operations, whose errors it gets as it likes") {
  ground g;
  asio::io_context io(1);
  joined q(io, g);
  queue_pair closed(io);
  const auto receive = [&]() -> plain_coroutine {
    const received r = co_await q.b.async_receive(g.part(1), use_awaiter);
    CHECK(r.bytes == 48);
  };
  const auto work = [&]() -> plain_coroutine {
    auto sending = q.a.async_send(g.part(0, 48), use_awaiter); // not started yet
    const auto receiving = receive();
    const std::size_t sent_bytes = co_await std::move(sending);
    CHECK(sent_bytes == 48);
    error_code thrown;
    try {
      co_await closed.async_send(g.part(0), use_awaiter);
    } catch (const system_error& e) {
      thrown = e.code();
    }
    CHECK(thrown == asio::error::bad_descriptor);
    const auto [ec, n] = co_await closed.async_send(g.part(0), asio::as_tuple(use_awaiter));
    CHECK(ec == asio::error::bad_descriptor);
    CHECK(n == 0);
    asio::steady_timer soon(io, std::chrono::milliseconds(1));
    co_await soon.async_wait(use_awaiter); // Asio's own operations, too
    co_await asio::post(io, use_awaiter);
    until(io, [&] { return receiving.done(); });
    CHECK(!receiving.failure());
  };
  finish(io, work());
}

TEST_CASE("the value of an awaited operation is that of its arguments without the error") {
  asio::io_context io(1);
  const auto work = [&]() -> plain_coroutine {
    static_assert(std::is_void_v<decltype(async_values<void()>(io, use_awaiter).await_resume())>);
    co_await async_values<void()>(io, use_awaiter);
    co_await async_values<void(error_code)>(io, use_awaiter, error_code());
    std::unique_ptr<int> one =
        co_await async_values<void(std::exception_ptr, std::unique_ptr<int>)>(
            io, use_awaiter, std::exception_ptr(), std::make_unique<int>(5));
    CHECK(*one == 5);
    const std::tuple<int, char> two =
        co_await async_values<void(error_code, int, char)>(io, use_awaiter, error_code(), 7, 'x');
    CHECK((two == std::tuple(7, 'x')));
    const int alone = co_await async_values<void(int)>(io, use_awaiter, 3);
    CHECK(alone == 3);
    std::string thrown;
    try {
      co_await async_values<void(std::exception_ptr)>(
          io, use_awaiter, std::make_exception_ptr(std::runtime_error("this one")));
    } catch (const std::runtime_error& e) {
      thrown = e.what();
    }
    CHECK(thrown == "this one");
  };
  finish(io, work());
}

TEST_CASE("a promise's executor, cancellation slot and allocator are those of the operation") {
  ground g;
  asio::io_context io(1);
  associations with{strand_type(io.get_executor())};
  joined q(io, g);
  int messages = 0;
  error_code end;
  const auto coroutine = receive_all(with, q.b, g.part(1), messages, end);
  CHECK(with.allocations == 1);
  sent message;
  q.a.async_send(g.part(0), message.handler());
  until(io, [&] { return messages == 1 && message.done(); });
  CHECK(!coroutine.done());
  with.signal.emit(asio::cancellation_type::terminal);
  until(io, [&] { return coroutine.done(); });
  CHECK(end == asio::error::operation_aborted);
  CHECK(with.allocations >= 2);
}

TEST_CASE("a coroutine whose operations complete at once keeps its depth of the stack") {
  asio::io_context io(1);
  queue_pair closed(io);
  char bytes[8];
  std::uintptr_t lowest = ~std::uintptr_t(0), highest = 0;
  const auto work = [&]() -> plain_coroutine {
    for (int i = 0; i < 20'000; ++i) {
      co_await closed.async_send(const_buffer(bytes, 8, 0), asio::as_tuple(use_awaiter));
      lowest = std::min(lowest, stack_now());
      highest = std::max(highest, stack_now());
    }
  };
  finish(io, work());
  CHECK(highest - lowest < 65'536); // 20,000 frames take more
}

TEST_CASE("a coroutine may resume on another thread before its await has returned") {
  ground g;
  asio::io_context io;
  joined q(io, g);
  std::atomic<int> arrived = 0;
  const auto work = [&]() -> plain_coroutine {
    for (int i = 1; i <= 1'000; ++i) {
      q.b.async_receive(g.part(1), [&](const error_code& ec, const received&) { arrived += !ec; });
      co_await q.a.async_send(g.part(0), use_awaiter);
      while (arrived != i)
        co_await asio::post(io, use_awaiter);
    }
  };
  const auto there = work();
  run_by_threads(io, 3);
  CHECK(there.done());
  CHECK(!there.failure());
}

TEST_CASE("a coroutine that waits when its context is destroyed is not resumed") {
  auto io = std::make_unique<asio::io_context>(1);
  auto never = std::make_unique<asio::steady_timer>(*io, std::chrono::hours(1));
  auto token = std::make_shared<int>();
  const std::weak_ptr<int> alive = token;
  bool resumed = false;
  const auto wait = [&](std::shared_ptr<int>) -> plain_coroutine {
    co_await never->async_wait(use_awaiter);
    resumed = true;
  };
  {
    const auto waits = wait(std::move(token));
    io->poll();
    never.reset(); // the handler is ready, and is not called
    io.reset();
    CHECK(!resumed);
    CHECK(!waits.done());
    CHECK(!alive.expired());
  }
  CHECK(alive.expired());
}

TEST_CASE("an operation that has ended leaves nothing in the promise's cancellation slot") {
  asio::io_context io(1);
  associations with{strand_type(io.get_executor())};
  bool waited = false;
  const auto coroutine = wait_once(with, io, waited);
  CHECK(with.signal.slot().has_handler());
  until(io, [&] { return coroutine.done(); });
  CHECK(waited);
  CHECK(!with.signal.slot().has_handler()); // it would point to the timer
}

} // namespace test::asio_awaiter_tests
