// SPDX-License-Identifier: BSL-1.0
//
// No heap allocation for a message that fits into a receive, once the connections have warmed up.
#include <catch.hpp>

#include "device/connection/connection_support.hpp"
#include "device/lifetime/life_counted_heap.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>

namespace test::connection_allocation_tests {
namespace {

constexpr std::size_t warm_up = 2000;
constexpr std::size_t messages = 50'000;
constexpr std::size_t window = 16;

// Waiting for the next check of the peer would allocate.
connection_options without_keep_alive() {
  connection_options o;
  o.keep_alive = std::chrono::milliseconds(0);
  return o;
}

// The sources of messages: copied into the frame, copied into the pool, or not copied.
struct sources {
  explicit sources(const memory_pool& pool) : registered(pool.allocate(2000)), view(registered) {}

  template <class Send>
  void each(std::size_t n, Send&& send) const {
    switch (n % 4) {
    case 0:
      return send(asio::buffer(plain, 64));
    case 1:
      return send(asio::buffer(plain));
    case 2:
      return send(registered);
    default:
      return send(view);
    }
  }

  std::array<std::byte, 1000> plain{};
  registered_buffer registered;
  const_buffer view;
};

// Sends with callbacks, a window at a time. The other end receives half of the messages with their
// memory, and half into its own memory.
struct exchange {
  talk& t;
  sources from{t.pool};
  std::array<std::byte, 4096> into{};
  std::size_t sent = 0, taken = 0, failed = 0, before = 0, after = 0;

  void send() {
    from.each(sent++, [this](const auto& buffers) {
      t.a.async_send(buffers, [this](error_code ec, std::size_t) {
        failed += ec ? 1u : 0u;
        if (sent < warm_up + messages)
          send();
      });
    });
  }
  void one_taken(const error_code& ec) {
    failed += ec ? 1u : 0u;
    if (++taken == warm_up)
      before = allocations;
    if (taken == warm_up + messages)
      after = allocations;
    else
      take();
  }
  void take() {
    if (taken % 2 == 0)
      t.b.async_receive([this](error_code ec, const message&) { one_taken(ec); });
    else
      t.b.async_receive(asio::buffer(into), [this](error_code ec, std::size_t) { one_taken(ec); });
  }
};

void check_exchange(talk& t) {
  exchange e{t};
  e.take();
  for (std::size_t i = 0; i < window; ++i)
    e.send();
  t.until([&] { return e.after != 0 || e.failed != 0; });
  CHECK(e.failed == 0);
  CHECK(e.taken == warm_up + messages);
  CHECK(e.after - e.before == 0);
}

} // namespace

TEST_CASE("eager messages with callbacks allocate nothing") {
  talk t(without_keep_alive(), without_keep_alive());
  check_exchange(t);
}

TEST_CASE("eager messages with callbacks allocate nothing, with shared receives") {
  talk t(without_keep_alive(), shared_receives_options());
  check_exchange(t);
}

TEST_CASE("eager messages there and back by coroutines allocate nothing") {
  talk t(without_keep_alive(), without_keep_alive());
  const registered_buffer question = t.pool.allocate(64);
  std::size_t before = 0, after = 0, over = 0;
  const auto rethrow = [&](const std::exception_ptr& e) {
    ++over;
    if (e)
      std::rethrow_exception(e);
  };
  const auto ask = [&](std::size_t exchanges) -> asio::awaitable<void> {
    for (std::size_t n = 0; n < exchanges; ++n) {
      if (n == 1) // both coroutines are running
        before = allocations;
      if (n == exchanges - 1) // the end of a coroutine may allocate
        after = allocations;
      co_await t.a.async_send(question, asio::use_awaitable);
      co_await t.a.async_receive(asio::use_awaitable);
    }
  };
  const auto answer = [&](std::size_t exchanges) -> asio::awaitable<void> {
    for (std::size_t n = 0; n < exchanges; ++n) {
      const message m = co_await t.b.async_receive(asio::use_awaitable);
      co_await t.b.async_send(m.payload, asio::use_awaitable);
    }
  };
  const auto play = [&](std::size_t pairs, std::size_t exchanges) {
    over = 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      asio::co_spawn(t.io, answer(exchanges), rethrow);
      asio::co_spawn(t.io, ask(exchanges), rethrow);
    }
    t.until([&] { return over == 2 * pairs; });
  };
  play(4, warm_up / 4); // more at once than a single pair of coroutines ever has
  play(1, messages);
  CHECK(after - before == 0);
}

TEST_CASE("operations on the peer's memory allocate nothing") {
  talk t(without_keep_alive(), without_keep_alive());
  const sources from{t.pool};
  memory target(t.pd, 4096, most_rights(t.dev));
  const registered_buffer into = t.pool.allocate(1000);
  std::array<std::byte, 100> plain{};
  const bool atomics = t.dev.has_atomics();
  std::size_t started = 0, done = 0, told = 0, failed = 0, before = 0, after = 0;
  const std::function<bool()> all_done = [&] { // made once, as it allocates
    return done == started * (atomics ? 5 : 4) && told == started;
  };
  const auto one = [&](error_code ec, std::uint64_t) {
    failed += ec ? 1u : 0u;
    ++done;
  };
  for (std::size_t n = 0; n < warm_up + messages / 10; ++n) {
    if (n == warm_up)
      before = allocations;
    from.each(n, [&](const auto& buffers) { t.a.async_write(buffers, target.remote(), one); });
    t.a.async_write(from.view, target.remote(), 1u, one);
    t.b.async_receive_immediate([&](error_code ec, std::uint32_t) {
      failed += ec ? 1u : 0u;
      ++told;
    });
    t.a.async_read(into, target.remote(), one);
    t.a.async_read(asio::buffer(plain), target.remote(), one);
    if (atomics)
      t.a.async_fetch_add(target.remote(), 1, one);
    ++started;
    t.until(all_done);
  }
  after = allocations;
  CHECK(failed == 0);
  // For each READ libibverbs allocates one object for the key of the sink.
  const std::size_t keys = t.dev.type() == transport::iwarp ? 2 * (messages / 10) : 0;
  CHECK(after - before == keys);
}

} // namespace test::connection_allocation_tests
