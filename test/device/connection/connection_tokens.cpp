// SPDX-License-Identifier: BSL-1.0
// Operations of a connection by coroutines with a time limit, by futures and by deferred
// operations.
#define BOOST_ASIO_ENABLE_HANDLER_TYPE_REQUIREMENTS
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/version.hpp>

#if BOOST_VERSION >= 108600
#include <boost/asio/cancel_after.hpp>
#endif

#include <array>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <variant>

namespace test::connection_tokens_tests {
namespace {

using namespace asio::experimental::awaitable_operators;
using asio::use_awaitable;

constexpr auto with_ec = asio::as_tuple(use_awaitable);
constexpr std::size_t lengthy = 200'000; // more than receives grow to

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  return o;
}

struct tokens : talk {
  tokens() : talk(generous(), generous()) {}

  /// Runs the context until the coroutine has ended, and throws its exception.
  void play(asio::awaitable<void> what) {
    bool over = false;
    std::exception_ptr thrown;
    asio::co_spawn(io, std::move(what), [&](const std::exception_ptr& e) {
      over = true;
      thrown = e;
    });
    until([&] { return over; });
    if (thrown)
      std::rethrow_exception(thrown);
  }
  asio::awaitable<void> due() {
    asio::steady_timer timer(io, asio::steady_timer::time_point::min());
    co_await timer.async_wait(use_awaitable);
  }
  /// Completes after none to a few turns of the context, each time another number, or after a
  /// timer.
  asio::awaitable<void> soon() {
    const std::uint32_t turns = calls_++ % 8;
    if (turns == 7)
      return due();
    return after(turns);
  }
  asio::awaitable<void> after(std::uint32_t turns) {
    for (std::uint32_t i = 0; i <= turns; ++i)
      co_await asio::post(io, use_awaitable);
  }
  static std::size_t size_of(std::uint32_t n) { return n % 3 == 2 ? lengthy : 100 + n; }
  /// Sends `count` messages from a, each with its number.
  asio::awaitable<void> send_all(std::uint32_t count) {
    for (std::uint32_t n = 0; n < count; ++n) {
      const auto bytes = pattern(size_of(n), n);
      co_await after(n % 10);
      co_await a.async_send(asio::buffer(bytes), n, use_awaitable);
    }
  }

private:
  std::uint32_t calls_ = 0;
};

/// Runs the context on its own thread.
class runner {
public:
  explicit runner(asio::io_context& io) : io_(io), work_(asio::make_work_guard(io)) {
    io.restart();
    thread_ = std::thread([&io] { io.run(); });
  }
  runner(const runner&) = delete;
  ~runner() {
    work_.reset();
    io_.stop();
    thread_.join();
  }

private:
  asio::io_context& io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

/// Checks that the future becomes ready within the tests' patience.
template <class T>
std::future<T>& ready(std::future<T>& f) {
  REQUIRE(f.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  return f;
}

template <class T>
error_code error_of(std::future<T>& f) {
  try {
    ready(f).get();
  } catch (const system_error& e) {
    return e.code();
  }
  return {};
}

} // namespace

TEST_CASE("a receive that is cancelled, again and again, loses no message") {
  tokens t;
  constexpr std::uint32_t count = 150;
  std::uint32_t given_up = 0;
  asio::co_spawn(t.io, t.send_all(count), asio::detached);
  t.play([&]() -> asio::awaitable<void> {
    std::vector<std::uint8_t> plain(lengthy);
    const registered_buffer owned = t.pool.allocate(lengthy);
    for (std::uint32_t n = 0; n < count;) {
      const std::size_t bytes = t.size_of(n);
      std::size_t got = 0;
      const void* data = nullptr;
      message whole;
      // Whether its message arrived first.
      if (n / 3 % 3 == 0) {
        auto r = co_await (t.b.async_receive(use_awaitable) || t.soon());
        if (r.index() == 0) {
          whole = std::move(std::get<0>(r));
          CHECK(whole.immediate == n);
          got = whole.size();
          data = whole.payload.data();
        }
      } else if (n / 3 % 3 == 1) {
        const auto r = co_await (t.b.async_receive(asio::buffer(plain), use_awaitable) || t.soon());
        if (r.index() == 0) {
          got = std::get<0>(r);
          data = plain.data();
        }
      } else {
        const auto r = co_await (t.b.async_receive(owned, use_awaitable) || t.soon());
        if (r.index() == 0) {
          got = std::get<0>(r);
          data = owned.data();
        } else { // until no operation writes to it
          co_await owned.async_write_access(t.io.get_executor(), use_awaitable);
        }
      }
      if (data == nullptr) {
        ++given_up;
        continue;
      }
      REQUIRE(got == bytes);
      CHECK(is_pattern(data, bytes, n));
      ++n;
    }
  }());
  CHECK(given_up > 20);
  CHECK(t.lives());
}

TEST_CASE("a receive that is cancelled by another connection's message loses nothing") {
  tokens t, u;
  asio_rdma::connection a(t.io, u.pool), b(t.io, u.pool); // a second pair on the same context
  test::connection accepted, connected;
  t.listener.async_accept(b, accepted.handler());
  t.initiator.async_connect(a, t.listener.local_endpoint(), connected.handler());
  t.until([&] { return accepted.done() && connected.done(); });
  REQUIRE((accepted.succeeded() && connected.succeeded()));
  t.play([&]() -> asio::awaitable<void> {
    for (std::uint32_t n = 0; n < 60; ++n) {
      const std::size_t bytes = n % 5 == 4 ? lengthy : 10 + n;
      const auto what = pattern(bytes, n);
      asio_rdma::connection& from = n % 2 == 0 ? t.a : a;
      bool is_sent = false;
      from.async_send(asio::buffer(what), [&](error_code ec, std::size_t) { is_sent = !ec; });
      const auto r = co_await (t.b.async_receive(use_awaitable) || b.async_receive(use_awaitable));
      const message& m = n % 2 == 0 ? std::get<0>(r) : std::get<1>(r);
      REQUIRE(m.size() == bytes);
      CHECK(is_pattern(m.payload.data(), bytes, n));
      while (!is_sent)
        co_await asio::post(t.io, use_awaitable);
    }
  }());
}

TEST_CASE("a send that is cancelled arrives whole or not at all") {
  tokens t;
  constexpr std::uint32_t count = 120;
  std::uint32_t given_up = 0;
  std::vector<bool> succeeded(count), arrived(count);
  bool over = false;
  asio::co_spawn(
      t.io,
      [&]() -> asio::awaitable<void> {
        std::uint32_t next = 0;
        for (;;) {
          const auto [ec, m] = co_await t.b.async_receive(with_ec);
          if (ec)
            break;
          const std::uint32_t n = m.immediate.value_or(count);
          REQUIRE(n < count);
          CHECK(n >= next);
          next = n + 1;
          arrived[n] =
              m.size() == (n % 2 == 0 ? lengthy : 300) && is_pattern(m.payload.data(), m.size(), n);
          CHECK(arrived[n]);
        }
        over = true;
      },
      asio::detached);
  t.play([&]() -> asio::awaitable<void> {
    for (std::uint32_t n = 0; n < count; ++n) {
      const std::size_t bytes = n % 2 == 0 ? lengthy : 300;
      auto plain = pattern(bytes, n);
      registered_buffer owned = filled(t.pool, bytes, n);
      std::size_t won = 0;
      if (n % 4 < 2) {
        won =
            (co_await (t.a.async_send(asio::buffer(plain), n, use_awaitable) || t.soon())).index();
        std::fill(plain.begin(), plain.end(), std::uint8_t(0xee)); // the caller's again
      } else {
        won = (co_await (t.a.async_send(owned, n, use_awaitable) || t.soon())).index();
        if (won != 0) {
          co_await owned.async_write_access(t.io.get_executor(), use_awaitable);
          owned.zero();
        }
      }
      succeeded[n] = won == 0;
      given_up += won != 0 ? 1 : 0;
    }
    co_await t.a.async_close(use_awaitable);
  }());
  t.until([&] { return over; });
  CHECK(given_up > 10);
  for (std::uint32_t n = 0; n < count; ++n)
    CHECK((arrived[n] || !succeeded[n]));
}

#if BOOST_VERSION >= 108600
TEST_CASE("operations that cancel_after ends lose no message, and their memory is free") {
  using namespace std::chrono_literals;
  tokens t;
  constexpr std::uint32_t count = 60;
  std::uint32_t given_up = 0;
  t.play([&]() -> asio::awaitable<void> {
    const auto [nothing_yet, none] = co_await t.b.async_receive(asio::cancel_after(1us, with_ec));
    CHECK(nothing_yet == asio::error::operation_aborted);
    asio::co_spawn(t.io, t.send_all(count), asio::detached);
    for (std::uint32_t n = 0; n < count;) {
      const auto [ec, m] = co_await t.b.async_receive(asio::cancel_after(n % 5 * 20us, with_ec));
      if (ec) {
        CHECK(ec == asio::error::operation_aborted);
        ++given_up;
        co_await t.after(n % 3);
        continue;
      }
      REQUIRE(m.immediate == n);
      CHECK(is_pattern(m.payload.data(), t.size_of(n), n));
      ++n;
    }
    const remote_region there = co_await t.a.async_request_memory(lengthy, use_awaitable);
    for (std::uint32_t n = 0; n < 20; ++n) {
      const registered_buffer b = filled(t.pool, lengthy, n);
      const auto [ec, bytes] =
          co_await t.a.async_write(b, there, asio::cancel_after(n % 5 * 20us, with_ec));
      CHECK((!ec || ec == asio::error::operation_aborted));
      co_await b.async_write_access(t.io.get_executor(), use_awaitable);
    }
  }());
  CHECK(given_up != 0);
  CHECK(t.lives());
}
#endif

TEST_CASE(
    "remote operations, requests and waits that are cancelled leave the connection as it is") {
  tokens t;
  t.play([&]() -> asio::awaitable<void> {
    const remote_region there = co_await t.a.async_request_memory(lengthy, use_awaitable);
    for (std::uint32_t n = 0; n < 40; ++n) {
      registered_buffer b = filled(t.pool, lengthy, n);
      if (n % 2 == 0)
        co_await (t.a.async_write(b, there, use_awaitable) || t.soon());
      else
        co_await (t.a.async_read(b, there, use_awaitable) || t.soon());
      co_await (t.a.async_request_memory(1000, use_awaitable) || t.soon());
      co_await (t.b.async_receive_immediate(use_awaitable) || t.soon());
      co_await (t.b.async_receive_region(use_awaitable) || t.soon());
      co_await (t.b.async_wait_disconnect(use_awaitable) || t.soon());
    }
    const registered_buffer mine = filled(t.pool, lengthy, 77), back = t.pool.allocate(lengthy);
    co_await t.a.async_write(mine, there, use_awaitable);
    co_await t.a.async_read(back, there, use_awaitable);
    CHECK(is_pattern(back.data(), lengthy, 77));
  }());
  CHECK(t.lives());
}

TEST_CASE("futures, while another thread runs the context, and a close while one waits") {
  tokens t;
  std::vector<std::uint8_t> plain(lengthy);
  {
    std::optional<runner> runs(std::in_place, t.io);
    const auto bytes = pattern(lengthy, 3);
    auto s = t.a.async_send(asio::buffer(bytes), asio::use_future);
    auto r = t.b.async_receive(asio::buffer(plain), asio::use_future);
    CHECK(ready(s).get() == lengthy);
    CHECK(ready(r).get() == lengthy);
    CHECK(is_pattern(plain.data(), lengthy, 3));
    auto m = t.b.async_receive(asio::use_future);
    auto region = t.a.async_request_memory(64, asio::use_future);
    CHECK(ready(region).get().size() == 64);
    auto sent_m = t.a.async_send(asio::buffer("x", 1), 9u, asio::use_future);
    CHECK(ready(m).get().immediate == 9);
    ready(sent_m).get();

    auto waiting = t.b.async_receive(asio::use_future);
    auto into = t.b.async_receive(t.pool.allocate(100), asio::use_future);
    auto immediate = t.b.async_receive_immediate(asio::use_future);
    auto offered = t.b.async_send(asio::buffer(bytes), asio::use_future);
    auto disconnect = t.a.async_wait_disconnect(asio::use_future);
    CHECK(waiting.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
    asio::post(t.io, [&] { t.b.close(); });
    ready(waiting), ready(into), ready(immediate), ready(offered), ready(disconnect);
    // The threads share the exceptions by a reference count in libstdc++, which ThreadSanitizer
    // does not see.
    runs.reset();
    CHECK(error_of(waiting) == asio::error::operation_aborted);
    CHECK(error_of(into) == asio::error::operation_aborted);
    CHECK(error_of(immediate) == asio::error::operation_aborted);
    CHECK(error_of(offered) == asio::error::operation_aborted);
    CHECK(error_of(disconnect) == asio::error::connection_reset);
  }
  auto late = t.b.async_receive(asio::use_future);
  t.until([&] { return late.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  CHECK(error_of(late) == asio::error::bad_descriptor);
}

TEST_CASE("futures of operations that are cancelled, and the memory is free") {
  tokens t;
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  const registered_buffer owned = t.pool.allocate(100);
  const auto bytes = pattern(lengthy, 1);
  std::array<asio::cancellation_signal, 4> cancel;
  std::size_t next = 0;
  const auto token = [&] {
    return asio::bind_cancellation_slot(cancel[next++].slot(), asio::use_future);
  };
  auto message = t.b.async_receive(token());
  auto size = t.b.async_receive(owned, token());
  auto region = t.b.async_receive_region(token());
  auto offered = t.b.async_send(asio::buffer(bytes), token());
  CHECK(in_use(owned));
  for (auto& c : cancel)
    c.emit(&c == &cancel[3] ? asio::cancellation_type::partial : asio::cancellation_type::total);
  drain(t.io);
  CHECK(error_of(message) == asio::error::operation_aborted);
  CHECK(error_of(size) == asio::error::operation_aborted);
  CHECK(error_of(region) == asio::error::operation_aborted);
  CHECK(error_of(offered) == asio::error::operation_aborted);
  CHECK(!in_use(owned));
  CHECK(t.lives());
  t.a.close();
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 1); // `owned`
  CHECK(blocks > 1);
}

TEST_CASE("deferred operations begin when they are launched") {
  tokens t;
  const auto bytes = pattern(500, 1);
  auto send = t.a.async_send(asio::buffer(bytes), asio::deferred);
  auto receive = t.b.async_receive(asio::deferred);
  const std::uint64_t before = t.a.statistics().frames_sent;
  t.io.restart();
  t.io.poll();
  CHECK(t.a.statistics().frames_sent == before);
  sent s;
  outcome<message> r;
  std::move(send)(s.handler());
  std::move(receive)(r.handler());
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(r.value.size() == 500);
  CHECK(is_pattern(r.value.payload.data(), 500, 1));

  // One operation behind the other, as one deferred operation.
  outcome<message> echo;
  t.b.async_send(asio::buffer("back", 4), asio::detached);
  t.a.async_send(asio::buffer(bytes), asio::deferred([&](error_code, std::size_t) {
                   return t.a.async_receive(asio::deferred);
                 }))(echo.handler());
  t.until([&] { return echo.done(); });
  REQUIRE(echo.succeeded());
  CHECK(echo.value.size() == 4);
}

TEST_CASE("errors are reported by as_tuple and by exceptions; detached operations continue") {
  tokens t;
  t.play([&]() -> asio::awaitable<void> {
    t.a.async_send(asio::buffer(pattern(lengthy, 4)), asio::detached);
    const auto [ec, m] = co_await t.b.async_receive(with_ec);
    CHECK(!ec);
    CHECK(is_pattern(m.payload.data(), lengthy, 4));
    const auto [refused, region] = co_await t.a.async_request_memory(std::size_t(2) << 20, with_ec);
    CHECK(refused == error::remote_memory_limit);
    CHECK(!region.is_open());
    error_code thrown;
    try {
      co_await t.a.async_request_memory(0, use_awaitable);
    } catch (const system_error& e) {
      thrown = e.code();
    }
    CHECK(thrown == asio::error::invalid_argument);
    t.b.close();
    const auto [gone, nothing] = co_await t.a.async_receive(with_ec);
    CHECK(gone == asio::error::connection_reset);
    CHECK(nothing.size() == 0);
  }());
}

} // namespace test::connection_tokens_tests
