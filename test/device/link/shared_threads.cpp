// SPDX-License-Identifier: BSL-1.0
// Connections that share their receives, on several threads.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/lifetime/life_resources.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <deque>
#include <exception>
#include <thread>

namespace test::shared_threads_tests {
namespace {

constexpr std::uint32_t pairs = 6, count = 200, threads = 3, endless = 1u << 30;

/// Connections, each with its own strand.
struct crowd {
  crowd() {
    shared_receives_options o;
    o.receives = pairs * o.per_link + 4;
    of_a = shared_receives(io, pool, o);
    of_b = shared_receives(io, pool, o);
    acceptor listener(io, {device_address(dev), 0});
    connector initiator(io);
    for (std::uint32_t i = 0; i < pairs; ++i) {
      test::connection accepted, connected;
      a.emplace_back(asio::make_strand(io), of_a);
      b.emplace_back(asio::make_strand(io), of_b);
      listener.async_accept(b[i], accepted.handler());
      initiator.async_connect(a[i], listener.local_endpoint(), connected.handler());
      until(io, [&] { return accepted.done() && connected.done(); });
      REQUIRE(accepted.succeeded());
      REQUIRE(connected.succeeded());
    }
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  asio::io_context io{threads};
  shared_receives of_a, of_b;
  std::deque<asio_rdma::connection> a, b;
};

std::size_t size_of(std::uint32_t n) { return n % 50 == 49 ? 20'000 : n * 17 % 4000; }

} // namespace

TEST_CASE("connections that share their receives, some of which are closed, on several threads") {
  const resource_check nothing_left;
  crowd c;
  std::atomic<std::uint32_t> right{0}, over{0}, failed{0};
  const auto send = [&](asio_rdma::connection& from, std::uint32_t seed,
                        std::uint32_t most) -> asio::awaitable<void> {
    for (std::uint32_t n = 0; n < most; ++n) {
      const auto bytes = pattern(size_of(n), n + seed);
      co_await from.async_send(asio::buffer(bytes), n, asio::use_awaitable);
    }
    if (most < count)
      from.close();
  };
  const auto receive = [&](asio_rdma::connection& to, std::uint32_t seed,
                           std::uint32_t most) -> asio::awaitable<void> {
    for (std::uint32_t n = 0; n < most; ++n) {
      const message m = co_await to.async_receive(asio::use_awaitable);
      if (m.size() == size_of(n) && is_pattern(m.payload.data(), m.size(), n + seed) &&
          m.immediate == std::optional(n))
        ++right;
    }
  };
  const auto ended = [&](const std::exception_ptr& e) {
    ++over;
    failed += e ? 1 : 0;
  };
  for (std::uint32_t i = 0; i < pairs; ++i) {
    // Two connections end during the traffic.
    const std::uint32_t most = i < 2 ? 50 + 20 * i : count, others = i < 2 ? endless : count;
    asio::co_spawn(c.a[i].get_executor(), send(c.a[i], i, most), ended);
    asio::co_spawn(c.b[i].get_executor(), receive(c.b[i], i, others), ended);
    asio::co_spawn(c.b[i].get_executor(), send(c.b[i], 100 + i, others), ended);
    asio::co_spawn(c.a[i].get_executor(), receive(c.a[i], 100 + i, others), ended);
  }
  c.io.restart();
  std::vector<std::thread> run;
  for (std::uint32_t i = 0; i < threads; ++i)
    run.emplace_back([&] { c.io.run(); });
  for (std::thread& t : run)
    t.join();
  CHECK(over == 4 * pairs);
  CHECK(failed == 2 * 3);
  CHECK(right >= 2 * (pairs - 2) * count);
  until(c.io, [&] {
    return c.of_a.statistics().links == pairs - 2 && c.of_b.statistics().links == pairs - 2;
  });
  c.a.clear();
  c.b.clear();
  c.of_a = c.of_b = {};
  c.io.restart();
  drain(c.io);
  CHECK(c.pool.statistics().blocks_in_use == 0);
}

} // namespace test::shared_threads_tests
