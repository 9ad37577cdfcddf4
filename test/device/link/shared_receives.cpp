// SPDX-License-Identifier: BSL-1.0
// Connections and streams that share receives.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/link/shared_crowd.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <deque>

namespace test::shared_receives_tests {
namespace {

using streams = crowd<asio_rdma::stream>;

/// Messages of all sizes in one direction, `window` at a time.
struct traffic {
  static constexpr std::uint32_t count = 150, window = 4;

  static std::size_t size_of(std::uint32_t n) {
    std::mt19937 random(n);
    const auto kind = static_cast<std::uint32_t>(random() % 100);
    return random() % (kind < 2 ? 1u << 20 : kind < 10 ? 65536u : kind < 50 ? 4097u : 257u);
  }
  asio::awaitable<void> send() {
    while (sent < count) {
      const std::uint32_t n = sent++;
      const auto bytes = pattern(size_of(n), n + seed);
      co_await from.async_send(asio::buffer(bytes), n, asio::use_awaitable);
    }
  }
  asio::awaitable<void> receive() {
    while (begun < count) {
      const std::uint32_t n = begun++;
      const message m = co_await to.async_receive(asio::use_awaitable);
      right += m.size() == size_of(n) && is_pattern(m.payload.data(), m.size(), n + seed) &&
                       m.immediate == std::optional(n)
                   ? 1u
                   : 0u;
      ++received;
    }
  }
  void start(asio::io_context& io) {
    for (std::uint32_t i = 0; i < window; ++i) {
      asio::co_spawn(io, send(), asio::detached);
      asio::co_spawn(io, receive(), asio::detached);
    }
  }

  asio_rdma::connection& from;
  asio_rdma::connection& to;
  std::uint32_t seed;
  std::uint32_t sent = 0, begun = 0, received = 0, right = 0;
};

} // namespace

TEST_CASE("two connections share their receives") {
  talks c(2);
  for (std::uint32_t i = 0; i < 100; ++i)
    for (std::size_t n = 0; n < 2; ++n) {
      c.carries(c.a[n], c.b[n], i * 100, i);
      c.carries(c.b[n], c.a[n], i * 100, i);
    }
  CHECK(c.of_b.statistics().links == 2);
  CHECK(c.of_b.statistics().posted == c.of_b.options().receives);
  gives_everything_back(c);
}

TEST_CASE("messages of all sizes among connections that share arrive whole and in order") {
  talks c(6, few(40));
  std::deque<traffic> all;
  for (std::uint32_t i = 0; i < 6; ++i) {
    all.push_back({c.a[i], c.b[i], 1000 * i});
    all.push_back({c.b[i], c.a[i], 1000 * i + 500});
  }
  for (traffic& t : all)
    t.start(c.io);
  c.until([&] {
    return std::all_of(all.begin(), all.end(),
                       [](const traffic& t) { return t.received == traffic::count; });
  });
  for (const traffic& t : all)
    CHECK(t.right == traffic::count);
  gives_everything_back(c);
}

TEST_CASE("a link that does not read holds up no other link") {
  // So few receives that the link that does not read would occupy all of them.
  talks c(3, few(20));
  constexpr std::uint32_t count = 100;
  std::deque<outcome<std::size_t>> sent;
  const auto text = pattern(100, 1);
  for (std::uint32_t i = 0; i < count; ++i)
    c.a[0].async_send(asio::buffer(text), i, sent.emplace_back().handler());
  for (std::uint32_t i = 0; i < 50; ++i)
    for (std::size_t n = 1; n < 3; ++n) {
      c.carries(c.a[n], c.b[n], 100 * i, i);
      c.carries(c.b[n], c.a[n], 100 * i, i);
    }
  CHECK(!sent.back().done());
  CHECK(c.of_b.statistics().room == 0); // some messages occupy receives beyond the link's own
  for (std::uint32_t i = 0; i < count; ++i) {
    outcome<message> r;
    c.b[0].async_receive(r.handler());
    c.until([&] { return r.done(); });
    REQUIRE(r.succeeded());
    REQUIRE(r.value.immediate == std::optional(i));
  }
  c.until([&] { return sent.back().done(); });
  for (const auto& s : sent)
    CHECK(s.succeeded());
  CHECK(c.of_b.statistics().posted == 20);
  gives_everything_back(c);
}

TEST_CASE("more connections than there are receives for are refused") {
  talks c(2, few(12));
  CHECK(c.of_a.statistics().room == 0);
  error_code ec;
  asio_rdma::connection more(c.io);
  more.open(c.of_a, connection_options(), ec);
  CHECK(ec == error::shared_receives_full);
  CHECK(!more.is_open());
  CHECK(c.of_a.statistics().links == 2);
  c.carries(c.a[1], c.b[1], 10000, 1);

  c.a[0].close();
  c.b[0].close();
  c.until([&] { return c.of_a.statistics().room == 1 && c.of_b.statistics().room == 1; });
  more.open(c.of_a, connection_options(), ec);
  REQUIRE(ec == error_code());
  c.b[0].open(c.of_b);
  c.connect(more, c.b[0]);
  c.carries(more, c.b[0], 10000, 2);
  c.carries(c.b[1], c.a[1], 10000, 3);
  more.close();
  gives_everything_back(c);
}

TEST_CASE("shared receives, and links on them, that cannot be opened are refused") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io, other;
  error_code ec;
  const auto refuses = [&](auto change) {
    shared_receives_options o;
    change(o);
    const shared_receives r(io, pool, o, ec);
    return ec == asio::error::invalid_argument && !r.is_open();
  };
  CHECK(refuses([](auto& o) { o.per_link = 4; }));
  CHECK(refuses([](auto& o) { o.receives = o.per_link - 1; }));
  CHECK(refuses([](auto& o) { o.per_link = o.receives = 1 << 16; }));
  CHECK(refuses([](auto& o) { o.receive_size = 40; }));
  asio_rdma::connection link(io);
  link.open(shared_receives(), connection_options(), ec);
  CHECK(ec == asio::error::bad_descriptor);
  const shared_receives of_another(other, pool);
  link.open(of_another, connection_options(), ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK(of_another.statistics().links == 0);
  memory_pool_options little;
  little.limit = 1 << 20;
  const shared_receives too_many(io, memory_pool(pool.get_protection_domain(), little), {}, ec);
  CHECK(ec == error::pool_limit);
}

TEST_CASE("messages for which memory was lacking are received when there is some again") {
  memory_pool_options little;
  little.limit = little.first_arena;
  connection_options silent;
  silent.keep_alive = silent.keep_alive.zero(); // keep-alive would look for memory too
  talks c(0, few(16), little);
  for (int i = 0; i < 2; ++i)
    c.connect(c.a.emplace_back(c.io, c.of_a, silent), c.b.emplace_back(c.io, c.of_b, silent));
  const registered_buffer text = filled(c.pool_a, 4000, 5);
  constexpr std::uint32_t count = 1500;
  std::uint32_t sent = 0, received = 0, right = 0, emptied = 0;
  std::deque<message> kept;
  const std::function<void(std::size_t)> send = [&](std::size_t n) {
    if (sent++ < count)
      c.a[n].async_send(text, [&, n](error_code ec, std::size_t) {
        if (!ec)
          send(n);
      });
  };
  outcome<message> r[2];
  const auto take = [&](std::size_t n) {
    REQUIRE(r[n].ec == error_code());
    right += is_pattern(r[n].value.payload.data(), r[n].value.size(), 5) ? 1u : 0u;
    kept.push_back(std::move(r[n].value));
    ++received;
    r[n] = {};
    c.b[n].async_receive(r[n].handler());
  };
  for (std::size_t n = 0; n < 2; ++n) {
    c.b[n].async_receive(r[n].handler());
    for (int i = 0; i < 8; ++i)
      send(n);
  }
  while (received < count) {
    // Data stops at the latest when so many receives are missing that only those reserved for
    // control frames are left.
    c.until([&] { return r[0].done() || r[1].done() || c.of_b.statistics().missing >= 8; });
    for (std::size_t n = 0; n < 2; ++n)
      if (r[n].done())
        take(n);
    if (c.of_b.statistics().missing >= 8 && !r[0].done() && !r[1].done()) {
      ++emptied;
      kept.clear();
      c.until([&] { return c.of_b.statistics().missing < 8; });
    }
  }
  CHECK(right == received);
  CHECK(emptied > 1);
  kept.clear();
  r[0] = r[1] = {};
  c.b[0].cancel();
  c.b[1].cancel();
}

TEST_CASE("streams share their receives") {
  streams c(4, few(30));
  std::size_t over = 0, right = 0;
  const auto write = [&](asio_rdma::stream& to, std::uint32_t seed) -> asio::awaitable<void> {
    for (std::uint32_t i = 0; i < 60; ++i) {
      const auto bytes = pattern(i % 20 == 19 ? 300'000 : 1 + i * 97, seed + i);
      co_await asio::async_write(to, asio::buffer(bytes), asio::use_awaitable);
    }
  };
  const auto read = [&](asio_rdma::stream& from, std::uint32_t seed) -> asio::awaitable<void> {
    for (std::uint32_t i = 0; i < 60; ++i) {
      std::vector<std::uint8_t> bytes(i % 20 == 19 ? 300'000 : 1 + i * 97);
      co_await asio::async_read(from, asio::buffer(bytes), asio::use_awaitable);
      right += is_pattern(bytes.data(), bytes.size(), seed + i) ? 1u : 0u;
    }
    ++over;
  };
  for (std::uint32_t n = 0; n < 4; ++n) {
    asio::co_spawn(c.io, write(c.a[n], n), asio::detached);
    asio::co_spawn(c.io, read(c.b[n], n), asio::detached);
    asio::co_spawn(c.io, write(c.b[n], n + 7), asio::detached);
    asio::co_spawn(c.io, read(c.a[n], n + 7), asio::detached);
  }
  c.until([&] { return over == 8; });
  CHECK(right == 8 * 60);
  gives_everything_back(c);
}

} // namespace test::shared_receives_tests
