// SPDX-License-Identifier: BSL-1.0
// Connections of a context that several threads run.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace test::connection_threads_tests {
namespace {

using asio::use_awaitable;

constexpr auto with_ec = asio::as_tuple(use_awaitable);

constexpr std::uint32_t pairs = 16, threads = 4, count = 60, rounds = 8;
// The last connections are closed by another thread during the traffic.
constexpr std::uint32_t closed = 4;
constexpr std::size_t most = 150'000;

bool ends_early(std::uint32_t pair) { return pair >= pairs - closed; }

std::size_t size_of(std::uint32_t n, std::uint32_t seed) {
  std::mt19937 random(n * 1000 + seed);
  const auto kind = static_cast<std::uint32_t>(random() % 10);
  return random() % (kind == 0 ? most : kind < 4 ? 20'000u : 3000u);
}

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  o.receives = 16;
  return o;
}

/// Pairs of connections, each object with a strand of its own.
class crowd {
public:
  crowd() {
    acceptor listener(io, {device_address(dev), 0});
    connector initiator(io);
    for (std::uint32_t i = 0; i < pairs; ++i) {
      test::connection accepted, connected;
      a.emplace_back(asio::make_strand(io), pool, generous());
      b.emplace_back(asio::make_strand(io), pool, generous());
      listener.async_accept(b[i], accepted.handler());
      initiator.async_connect(a[i], listener.local_endpoint(), connected.handler());
      until(io, [&] { return accepted.done() && connected.done(); });
      REQUIRE(accepted.succeeded());
      REQUIRE(connected.succeeded());
    }
  }

  /// Spawns the coroutine on the executor of its connection.
  template <class Coroutine>
  void spawn(asio_rdma::connection& c, Coroutine&& f) {
    ++started;
    asio::co_spawn(
        c.get_executor(), std::forward<Coroutine>(f), [this](const std::exception_ptr& e) {
          ++over;
          if (!e)
            return;
          try {
            std::rethrow_exception(e);
          } catch (const system_error& failure) {
            ++failed;
            const error_code ec = failure.code();
            if (ec != asio::error::operation_aborted && ec != asio::error::connection_reset &&
                ec != asio::error::bad_descriptor) // the connection was closed before this started
              tell(failure.what());
          }
        });
  }
  void tell(const std::string& what) {
    const std::lock_guard lock(mutex_);
    unexpected += what + '\n';
  }

  void run() {
    io.restart();
    for (std::uint32_t i = 0; i < threads; ++i)
      running_.emplace_back([this] { io.run(); });
  }
  void join() {
    for (std::thread& t : running_)
      t.join();
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  asio::io_context io{threads};
  std::deque<asio_rdma::connection> a, b;
  std::atomic<std::uint32_t> right{0}, started{0}, over{0}, failed{0}, remote_right{0};
  std::string unexpected;

private:
  std::mutex mutex_;
  std::vector<std::thread> running_;
};

asio::awaitable<void> send(crowd& c, asio_rdma::connection& from, std::uint32_t seed,
                           std::uint32_t messages) {
  for (std::uint32_t n = 0; n < messages; ++n) {
    const std::size_t bytes = size_of(n, seed);
    if (n % 3 == 0) {
      const registered_buffer b = filled(c.pool, bytes, n + seed);
      co_await from.async_send(b, n, use_awaitable);
    } else if (n % 3 == 1) {
      const registered_buffer b = filled(c.pool, bytes, n + seed);
      co_await from.async_send(const_buffer(b), n, use_awaitable);
    } else {
      const auto b = pattern(bytes, n + seed);
      co_await from.async_send(asio::buffer(b), n, use_awaitable);
    }
  }
}

asio::awaitable<void> receive(crowd& c, asio_rdma::connection& to, std::uint32_t seed,
                              std::uint32_t messages) {
  std::vector<std::uint8_t> plain(most);
  const registered_buffer owned = c.pool.allocate(most);
  for (std::uint32_t n = 0; n < messages; ++n) {
    const std::size_t bytes = size_of(n, seed);
    bool is_right = false;
    if (n % 3 == 0) {
      const message m = co_await to.async_receive(use_awaitable);
      is_right = m.size() == bytes && m.immediate == std::optional(n) &&
                 is_pattern(m.payload.data(), bytes, n + seed);
    } else if (n % 3 == 1) {
      const std::size_t got = co_await to.async_receive(owned, use_awaitable);
      is_right = got == bytes && is_pattern(owned.data(), bytes, n + seed);
    } else {
      const std::size_t got = co_await to.async_receive(asio::buffer(plain), use_awaitable);
      is_right = got == bytes && is_pattern(plain.data(), bytes, n + seed);
    }
    c.right += is_right ? 1 : 0;
  }
}

/// Memory of the peer: requested, written, read and released, repeatedly.
asio::awaitable<void> reach(crowd& c, asio_rdma::connection& from, std::uint32_t seed,
                            std::uint32_t times) {
  for (std::uint32_t n = 0; n < times; ++n) {
    const std::size_t bytes = 1000 + size_of(n, seed);
    const remote_region there = co_await from.async_request_memory(bytes, use_awaitable);
    const registered_buffer mine = filled(c.pool, bytes, n + seed), back = c.pool.allocate(bytes);
    const auto plain = pattern(bytes / 2, n + seed + 1);
    co_await from.async_write(mine, there, use_awaitable);
    co_await from.async_write(asio::buffer(plain), there, n, use_awaitable);
    co_await from.async_read(back, there, use_awaitable);
    const std::size_t half = bytes / 2;
    const auto* p = static_cast<const std::uint8_t*>(back.data());
    const auto whole = pattern(bytes, n + seed);
    c.remote_right +=
        is_pattern(p, half, n + seed + 1) &&
                std::equal(p + half, p + bytes, whole.begin() + static_cast<std::ptrdiff_t>(half))
            ? 1
            : 0;
  }
}

asio::awaitable<void> hear(asio_rdma::connection& c, std::uint32_t times) {
  for (std::uint32_t n = 0; n < times; ++n)
    if (co_await c.async_receive_immediate(use_awaitable) != n)
      throw system_error(error::protocol_violation, "immediate data");
}

} // namespace

TEST_CASE("16 pairs on 4 threads: messages, remote memory, and closes from elsewhere") {
  const resource_check nothing_left;
  crowd c;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const bool endless = ends_early(i);
    const std::uint32_t messages = endless ? 1u << 30 : count, times = endless ? 1u << 30 : rounds;
    asio_rdma::connection &a = c.a[i], &b = c.b[i];
    c.spawn(a, send(c, a, i, messages));
    c.spawn(b, send(c, b, 100 + i, messages));
    c.spawn(b, receive(c, b, i, messages));
    c.spawn(a, receive(c, a, 100 + i, messages));
    c.spawn(a, reach(c, a, 200 + i, times));
    c.spawn(b, reach(c, b, 300 + i, times));
    c.spawn(b, hear(b, times));
    c.spawn(a, hear(a, times));
  }
  c.run();
  // Each closes at a different moment in the traffic, one side or both.
  for (std::uint32_t i = pairs - closed; i < pairs; ++i) {
    while (c.right < (i - (pairs - closed) + 1) * 150)
      std::this_thread::yield();
    asio::post(c.a[i].get_executor(), [&c, i] { c.a[i].close(); });
    if (i % 2 == 0)
      asio::post(c.b[i].get_executor(), [&c, i] { c.b[i].close(); });
  }
  c.join();
  CHECK(c.over == 8 * pairs);
  CHECK(c.started == 8 * pairs);
  CHECK(c.failed == 8 * closed);
  CHECK(c.right >= 2 * (pairs - closed) * count);
  CHECK(c.remote_right >= 2 * (pairs - closed) * rounds);
  CHECK(c.unexpected == "");
  c.a.clear();
  c.b.clear();
  drain(c.io);
  CHECK(c.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("four threads use one connection by its strand, and it is closed by one of them") {
  const resource_check nothing_left;
  crowd c;
  asio_rdma::connection &a = c.a[0], &b = c.b[0];
  std::atomic<std::uint32_t> sent_well{0}, taken{0};
  // Each thread starts an operation, which completes on the strand.
  const auto each = [](asio_rdma::connection& on, std::atomic<std::uint32_t>& good,
                       auto start) -> asio::awaitable<void> {
    for (;;) {
      co_await asio::dispatch(on.get_executor(), use_awaitable);
      const error_code ec = co_await start();
      if (ec)
        co_return;
      ++good;
    }
  };
  for (int i = 0; i < 4; ++i) {
    c.spawn(a, each(a, sent_well, [&, i]() -> asio::awaitable<error_code> {
              const auto bytes = pattern(i == 0 ? 50'000 : 500, 1);
              const auto [ec, n] = co_await a.async_send(asio::buffer(bytes), with_ec);
              co_return ec;
            }));
    c.spawn(b, each(b, taken, [&]() -> asio::awaitable<error_code> {
              const auto [ec, m] = co_await b.async_receive(with_ec);
              co_return ec;
            }));
  }
  c.run();
  while (taken < 400)
    std::this_thread::yield();
  asio::post(a.get_executor(), [&] { a.close(); });
  c.join();
  CHECK(c.over == 8);
  CHECK(c.failed == 0);
  CHECK(c.unexpected == "");
  CHECK(sent_well <= taken + 32);
  c.a.clear();
  c.b.clear();
  drain(c.io);
  CHECK(c.pool.statistics().blocks_in_use == 0);
}

} // namespace test::connection_threads_tests
