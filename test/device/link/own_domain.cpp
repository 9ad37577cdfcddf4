// SPDX-License-Identifier: BSL-1.0
// Connections and streams with protection domains of their own: their usual work, their memory.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <cerrno>
#include <list>
#include <vector>

namespace test::own_domain_tests {
namespace {

connection_options own() { return connection_options().set_own_domain(true); }
stream_options own_stream() { return stream_options().set_own_domain(true); }

template <class Object>
bool is_alone(const Object& o, const protection_domain& pd) {
  const ibv_pd* const used = o.native_handle()->pd;
  return used == o.pool().get_protection_domain().native_handle() && used != pd.native_handle();
}

/// The memory of an idle connection.
std::size_t idle_connection(asio::io_context& io, const device& dev) {
  const memory_pool pool{protection_domain(dev)};
  std::size_t bytes = 0;
  {
    const asio_rdma::connection c(io, pool, own());
    bytes = pool.statistics().bytes_registered;
    CHECK(c.pool().statistics().bytes_registered == bytes);
    if (c.pool().statistics().bytes_in_use == std::size_t(288) * 1024)
      CHECK(bytes == std::size_t(288) * 1024); // docs/sizing.md
  }
  drain(io);
  return bytes;
}

} // namespace

TEST_CASE("messages of any size are carried in protection domains of their own") {
  talk t(own(), own());
  CHECK(is_alone(t.a, t.pd));
  CHECK(is_alone(t.b, t.pd));
  CHECK(t.a.native_handle()->pd != t.b.native_handle()->pd);
  CHECK_FALSE(t.a.pool() == t.pool);
  std::uint32_t seed = 0;
  for (int round = 0; round != 2; ++round) // the receives grow
    for (const std::size_t bytes : {0u, 1u, 100u, 5000u, 50'000u, 200'000u, 3'000'000u}) {
      CAPTURE(bytes);
      const auto plain = pattern(bytes, ++seed);
      const registered_buffer owned = filled(t.a.pool(), bytes, ++seed);
      sent s[3], direct;
      outcome<message> r[2];
      t.a.async_send(asio::buffer(plain), s[0].handler());
      t.a.async_send(owned, s[1].handler());
      for (auto& each : r)
        t.b.async_receive(each.handler());
      t.until([&] { return s[0].done() && s[1].done() && r[0].done() && r[1].done(); });
      REQUIRE(r[0].succeeded());
      REQUIRE(r[1].succeeded());
      CHECK(is_pattern(r[0].value.payload.data(), bytes, seed - 1));
      CHECK(is_pattern(r[1].value.payload.data(), bytes, seed));
      // Back, into memory of the other side's pool.
      const registered_buffer into = t.a.pool().allocate(bytes);
      t.a.async_receive(into, direct.handler());
      t.b.async_send(r[1].value, s[2].handler());
      t.until([&] { return s[2].done() && direct.done(); });
      CHECK(direct.succeeded());
      CHECK(direct.value == bytes);
      CHECK(is_pattern(into.data(), bytes, seed));
    }
}

TEST_CASE("a message of another domain is refused as it is, and copied as a plain buffer") {
  talk t(own(), own());
  const std::size_t bytes = GENERATE(100u, 5000u, 200'000u);
  const message m{filled(t.b.pool(), bytes, 3), {}};
  sent refused, copied;
  outcome<message> r;
  t.a.async_send(m, refused.handler());
  t.until([&] { return refused.done(); });
  CHECK(refused.ec == asio::error::invalid_argument);
  t.a.async_send(asio::buffer(m), copied.handler());
  t.b.async_receive(r.handler());
  t.until([&] { return copied.done() && r.done(); });
  CHECK(copied.succeeded());
  REQUIRE(r.succeeded());
  CHECK(is_pattern(r.value.payload.data(), bytes, 3));
}

TEST_CASE("streams carry bytes in protection domains of their own") {
  stream_pair t(own_stream(), own_stream());
  CHECK(is_alone(t.a, t.pd));
  CHECK(is_alone(t.b, t.pd));
  std::uint32_t seed = 0;
  for (const std::size_t bytes : {1u, 5000u, 200'000u, 2'000'000u}) {
    CAPTURE(bytes);
    const auto plain = pattern(bytes, ++seed);
    const registered_buffer owned = filled(t.a.pool(), bytes, ++seed);
    std::vector<std::uint8_t> to(bytes), back(bytes);
    sent s[2], r[2];
    asio::async_write(t.a, asio::buffer(plain), s[0].handler());
    asio::async_read(t.b, asio::buffer(to), r[0].handler());
    t.until([&] { return s[0].done() && r[0].done(); });
    CHECK(is_pattern(to.data(), bytes, seed - 1));
    asio::async_write(t.a, mutable_buffer(owned), s[1].handler());
    asio::async_read(t.b, asio::buffer(back), r[1].handler());
    t.until([&] { return s[1].done() && r[1].done(); });
    CHECK(s[1].succeeded());
    CHECK(r[1].succeeded());
    CHECK(is_pattern(back.data(), bytes, seed));
  }
}

TEST_CASE(
    "memory of protection domains of their own counts against the pool's limit, and returns") {
  const device dev = open_device();
  const protection_domain pd(dev);
  asio::io_context io(1);
  const std::size_t idle = idle_connection(io, dev);
  const memory_pool pool(pd, memory_pool_options().set_limit(4 * idle));
  std::list<asio_rdma::connection> all;
  error_code ec;
  const auto open = [&] {
    all.emplace_back(io).open(pool, own(), ec);
  };
  for (std::size_t i = 1; i <= 4; ++i) {
    open();
    REQUIRE(ec == error_code());
    const memory_pool_statistics s = pool.statistics();
    CHECK(s.bytes_registered == i * idle);
    CHECK(s.bytes_in_use == i * idle);
    CHECK(s.arenas == 0);
    CHECK(all.back().pool().statistics().arenas == 1);
    CHECK(all.back().pool().limit() == pool.limit());
  }
  open();
  CHECK(ec == error::pool_limit);
  CHECK_FALSE(all.back().is_open());
  all.pop_back();
  all.pop_front();
  drain(io);
  open();
  CHECK(ec == error_code());
  all.clear();
  drain(io);
  CHECK(pool.statistics().bytes_registered == 0);
}

TEST_CASE("receives grow by the whole pool's use") {
  connection_options o = own();
  talk t(o, o, memory_pool_options().set_limit(12 << 20));
  const registered_buffer busy = t.pool.allocate(5 << 20);
  for (int i = 0; i != 5; ++i)
    t.exchange(100'000);
  CHECK(t.b.statistics().rendezvous_received == 5); // 4 MiB more would be over half of the limit
  t.pool.trim();
}

TEST_CASE("several connections are opened in one protection domain of their own") {
  talk t;
  const memory_pool tenant = t.pool.in_own_domain();
  CHECK_FALSE(tenant.get_protection_domain() == t.pd);
  asio_rdma::connection c(t.io, tenant), d(t.io, tenant), e(t.io, tenant, own());
  CHECK(is_alone(c, t.pd));
  CHECK(c.native_handle()->pd == d.native_handle()->pd);
  CHECK(c.native_handle()->pd != e.native_handle()->pd);
  CHECK(c.pool() == tenant);
  // The limit is that of the first pool.
  const std::size_t before = t.pool.statistics().bytes_registered;
  const registered_buffer b = e.pool().allocate(1'000'000);
  CHECK(t.pool.statistics().bytes_registered >= before + b.size());
  error_code ec;
  CHECK_FALSE(memory_pool().in_own_domain(ec).is_open());
  CHECK(ec == asio::error::bad_descriptor);
}

TEST_CASE("errors of objects with protection domains of their own") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  asio_rdma::connection c(io);
  asio_rdma::stream s(io);
  error_code ec;
  SECTION("shared receives belong to another protection domain") {
    const shared_receives shared(io, pool, {}, ec);
    if (ec)
      return not_on_this_device("shared receives");
    c.open(shared, own(), ec);
    CHECK(ec == asio::error::invalid_argument);
    s.open(shared, own_stream(), ec);
    CHECK(ec == asio::error::invalid_argument);
  }
  SECTION("the device has no more protection domains") {
    faults::injector faults(dev.native_handle());
    faults.fail(faults::call::alloc_pd, ENOMEM, {1, 3});
    c.open(pool, own(), ec);
    CHECK(ec == errc::not_enough_memory);
    s.open(pool, own_stream(), ec);
    CHECK(ec == errc::not_enough_memory);
    CHECK_THROWS_AS(pool.in_own_domain(), system_error);
    CHECK(pool.statistics().bytes_in_use == 0);
  }
  CHECK_FALSE(c.is_open());
  CHECK_FALSE(s.is_open());
  c.open(pool, own());
  s.open(pool, own_stream());
}

} // namespace test::own_domain_tests
