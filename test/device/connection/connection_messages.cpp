// SPDX-License-Identifier: BSL-1.0
// Messages: whole, in order, of any size.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/support/pairs.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <poll.h>
#include <string_view>
#include <thread>

namespace test::connection_messages_tests {
namespace {

using namespace std::chrono_literals;

/// A talk on given completion queues, which may be the same.
struct talk_on_queues {
  talk_on_queues(asio::io_context& context, const device& d, const completion_queue& of_a,
                 const completion_queue& of_b)
      : io(context), dev(d) {
    a.open(pool, of_a);
    b.open(pool, of_b);
    connect_by_manager(*this);
  }

  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  bool carries(std::uint32_t n, std::size_t bytes);

  asio::io_context& io;
  device dev;
  memory_pool pool{protection_domain(dev)};
  acceptor listener{io};
  connector initiator{io};
  asio_rdma::connection a{io}, b{io};
};

bool talk_on_queues::carries(std::uint32_t n, std::size_t size) {
  const auto bytes = pattern(size, n);
  sent s;
  outcome<message> r;
  b.async_receive(r.handler());
  a.async_send(asio::buffer(bytes), s.handler());
  until([&] { return s.done() && r.done(); });
  return s.succeeded() && r.value.size() == size && is_pattern(r.value.payload.data(), size, n);
}

bool is_readable(int descriptor, std::chrono::milliseconds within) {
  pollfd d{descriptor, POLLIN, 0};
  return ::poll(&d, 1, static_cast<int>(within.count())) == 1;
}

} // namespace

TEST_CASE("a message of each size arrives whole, with and without immediate") {
  talk t;
  const std::size_t eager = t.b.options().receive_size - 16;
  for (const std::size_t bytes :
       {std::size_t(0), std::size_t(1), std::size_t(240), std::size_t(241), eager, eager + 1,
        std::size_t(1) << 20, std::size_t(3000001)}) {
    CAPTURE(bytes);
    const auto sent_bytes = pattern(bytes, 7);
    for (const bool with_immediate : {false, true}) {
      outcome<std::size_t> s;
      outcome<message> r;
      if (with_immediate)
        t.a.async_send(asio::buffer(sent_bytes), 0xfeedu, s.handler());
      else
        t.a.async_send(asio::buffer(sent_bytes), s.handler());
      t.b.async_receive(r.handler());
      t.until([&] { return s.done() && r.done(); });
      REQUIRE(s.ec == error_code());
      REQUIRE(r.ec == error_code());
      CHECK(s.value == bytes);
      REQUIRE(r.value.size() == bytes);
      CHECK(is_pattern(r.value.payload.data(), bytes, 7));
      CHECK(r.value.immediate == (with_immediate ? std::optional(0xfeedu) : std::nullopt));
    }
  }
}

TEST_CASE("ten coroutines that send and ten that receive, at the same time") {
  talk t;
  constexpr std::uint32_t each = 10, at_a_time = 10;
  std::vector<int> seen(at_a_time * each);
  const auto send = [&](std::uint32_t who) -> asio::awaitable<void> {
    for (std::uint32_t i = who; i < seen.size(); i += at_a_time) {
      const std::size_t bytes = i % 3 == 0 ? 50'000 + i : i; // long and short ones
      const auto text = pattern(bytes, i);
      const auto [ec, n] =
          co_await t.a.async_send(asio::buffer(text), i, asio::as_tuple(asio::use_awaitable));
      CHECK(ec == error_code());
      CHECK(n == bytes);
    }
  };
  const auto receive = [&]() -> asio::awaitable<void> {
    for (std::uint32_t i = 0; i < each; ++i) {
      const message m = co_await t.b.async_receive(asio::use_awaitable);
      const std::uint32_t seed = m.immediate.value();
      CHECK(m.size() == (seed % 3 == 0 ? 50'000 + seed : seed));
      CHECK(is_pattern(m.payload.data(), m.size(), seed));
      ++seen.at(seed);
    }
  };
  std::size_t ended = 0;
  const auto end = [&](const std::exception_ptr& e) {
    CHECK(!e);
    ++ended;
  };
  for (std::uint32_t who = 0; who < at_a_time; ++who) {
    asio::co_spawn(t.io, receive(), end);
    asio::co_spawn(t.io, send(who), end);
  }
  t.until([&] { return ended == 2 * at_a_time; });
  CHECK(std::count(seen.begin(), seen.end(), 1) == std::ptrdiff_t(seen.size()));
}

TEST_CASE("10,000 messages of random sizes, 8 outstanding both ways, arrive whole and in order") {
  talk t;
  constexpr std::uint32_t count = 10000;
  std::uint32_t received = 0;
  bool right = true;
  const auto size_of = [](std::uint32_t i) -> std::size_t {
    std::mt19937 random(i);
    const auto kind = static_cast<std::uint32_t>(random() % 100);
    return random() % (kind == 0 ? 4194305u : kind < 10 ? 65536u : kind < 50 ? 4097u : 257u);
  };
  const auto talks = [&](asio_rdma::connection& from, asio_rdma::connection& to,
                         std::uint32_t first) -> asio::awaitable<void> {
    const std::uint32_t end = first + count / 2;
    auto next = std::make_shared<std::pair<std::uint32_t, std::uint32_t>>(first, first);
    for (int i = 0; i < 8; ++i) {
      asio::co_spawn(
          t.io,
          [&from, next, end, size_of]() -> asio::awaitable<void> {
            while (next->first < end) {
              const std::uint32_t n = next->first++;
              const auto bytes = pattern(size_of(n), n);
              if (n % 3 == 0)
                co_await from.async_send(asio::buffer(bytes), n, asio::use_awaitable);
              else
                co_await from.async_send(asio::buffer(bytes), asio::use_awaitable);
            }
          },
          asio::detached);
      asio::co_spawn(
          t.io,
          [&to, next, end, size_of, &received, &right]() -> asio::awaitable<void> {
            while (next->second < end) {
              const std::uint32_t n = next->second++;
              const message m = co_await to.async_receive(asio::use_awaitable);
              right = right && m.size() == size_of(n) &&
                      is_pattern(m.payload.data(), m.size(), n) &&
                      m.immediate == (n % 3 == 0 ? std::optional(n) : std::nullopt);
              ++received;
            }
          },
          asio::detached);
    }
    co_return;
  };
  asio::co_spawn(t.io, talks(t.a, t.b, 0), asio::detached);
  asio::co_spawn(t.io, talks(t.b, t.a, count / 2), asio::detached);
  for (std::uint32_t so_far = 0; so_far != count && right; so_far += count / 10)
    t.until([&] { return received >= so_far + count / 10 || !right; });
  CHECK(right);
  CHECK(received == count);
}

TEST_CASE("connections that share a given completion queue, in each mode") {
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::adaptive, completion_mode::busy);
  const device dev = open_device();
  asio::io_context io(1);
  const completion_queue queue(io, dev, {.mode = mode});
  talk_on_queues t(io, dev, queue, queue);
  CHECK(t.a.native_handle()->recv_cq == queue.native_handle());
  CHECK(t.b.native_handle()->send_cq == queue.native_handle());
  for (std::uint32_t n = 0; n < 20; ++n)
    CHECK(t.carries(n, n % 4 == 3 ? 100'000 : n));
  t.a.close();
  t.b.close();
  drain(io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

// If the queue were armed first, the operations that the handler starts would raise an event.
TEST_CASE("a message's handler is called before its completion queue is armed again") {
  const device dev = open_device();
  asio::io_context io(1);
  const completion_queue of_a(io, dev), of_b(io, dev);
  talk_on_queues t(io, dev, of_a, of_b);
  REQUIRE(t.carries(1, 4)); // until then the other side may not send on iWARP
  const int channel = of_a.native_handle()->channel->fd;
  bool came = false;
  std::uint64_t arms = 0;
  t.a.async_receive([&](const error_code& ec, const message& m) {
    came = !ec && m.size() == 4;
    arms = of_a.counters().arms;
  });
  io.restart();
  io.poll();
  REQUIRE_FALSE(is_readable(channel, 0ms));
  const std::uint64_t before = of_a.counters().arms;
  sent s;
  t.b.async_send(asio::buffer("four", 4), s.handler());
  REQUIRE(is_readable(channel, 20s));
  t.until([&] { return arms != 0; });
  CHECK(came);
  CHECK(arms == before);
}

// The pool calls `log` in the thread that registers the arena, if there are no reserved huge pages.
TEST_CASE("a context does other work while memory for a long message is registered", "[h17]") {
  std::atomic<bool> entered = false, may_return = false;
  std::thread::id registers;
  memory_pool_options options;
  options.first_arena = std::size_t(1) << 20; // not of huge pages
  options.log = [&](std::string_view) {
    registers = std::this_thread::get_id();
    entered = true;
    for (const auto end = std::chrono::steady_clock::now() + 20s;
         !may_return && std::chrono::steady_clock::now() < end;)
      std::this_thread::sleep_for(100us);
  };
  constexpr std::size_t length = std::size_t(20) << 20;
  talk t;
  const memory_pool pool(t.pd, options);
  asio_rdma::connection c(t.io), d(t.io);
  c.open(t.pool);
  d.open(pool);
  outcome<connection_info> accepted, connected;
  t.listener.async_accept(d, accepted.handler());
  t.initiator.async_connect(c, t.listener.local_endpoint(), connected.handler());
  t.until([&] { return accepted.done() && connected.done(); });
  const auto bytes = pattern(length, 5);
  sent s;
  outcome<message> r;
  c.async_send(asio::buffer(bytes), s.handler());
  d.async_receive(r.handler());
  t.until([&] { return entered || r.done(); });
  if (!entered)
    return not_on_this_device("a system without reserved huge pages");
  t.exchange(100);
  CHECK_FALSE(r.done());
  CHECK(registers != std::this_thread::get_id());
  const std::string end = GENERATE(as<std::string>(), "it arrives", "the receive is cancelled",
                                   "the connection is closed");
  INFO(end);
  if (end == "the receive is cancelled") {
    d.cancel();
    t.until([&] { return r.done(); });
    CHECK(r.ec == asio::error::operation_aborted);
    may_return = true;
    r = {};
    d.async_receive(r.handler());
  } else if (end == "the connection is closed") {
    d.close();
    t.until([&] { return r.done() && s.done(); });
    CHECK(r.ec == asio::error::operation_aborted);
    CHECK(s.ec);
    may_return = true;
    for (const auto limit = std::chrono::steady_clock::now() + 20s;
         pool.statistics().bytes_in_use != 0 && std::chrono::steady_clock::now() < limit;)
      std::this_thread::sleep_for(100us); // the memory is registered, and given back
    CHECK(pool.statistics().bytes_in_use == 0);
    return;
  }
  may_return = true;
  t.until([&] { return s.done() && r.done(); });
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  REQUIRE(r.value.size() == length);
  CHECK(is_pattern(r.value.payload.data(), length, 5));
}

} // namespace test::connection_messages_tests
