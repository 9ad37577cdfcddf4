// SPDX-License-Identifier: BSL-1.0
// Connections that are destroyed after their context.
#include <catch.hpp>

#include "connection/connection_impl.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/buffer.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace test::connection_outlives_tests {
namespace {

/// Connects a to b.
template <class Link>
void meet(asio::io_context& io, Link& a, Link& b) {
  acceptor listener(io, own_endpoint());
  connector initiator(io);
  test::connection accepted, connected;
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  until(io, [&] { return accepted.done() && connected.done(); });
  REQUIRE(accepted.succeeded());
  REQUIRE(connected.succeeded());
}

} // namespace

TEST_CASE("a connection with leases, keep-alive and waits is destroyed after its context") {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  o.remote_memory.grants = 4;
  o.remote_memory.rights = access::remote_read | access::remote_write;
  const device dev = open_device();
  const protection_domain pd(dev);
  const memory_pool pool(pd);
  const registered_buffer lent = pool.allocate(100);
  auto io = std::make_unique<asio::io_context>(1);
  asio_rdma::connection a(*io), b(*io);
  a.open(pool, o);
  b.open(pool, o);
  meet(*io, a, b);
  outcome<remote_region> region;
  outcome<void> sent;
  a.async_request_memory(1000, access::remote_read, std::chrono::minutes(1), region.handler());
  a.async_send_region(lent, access::remote_read, std::chrono::minutes(1), sent.handler());
  until(*io, [&] { return region.done() && sent.done(); });
  CHECK(region.succeeded());
  CHECK(sent.succeeded());
  int called = 0;
  a.async_receive([&](error_code, const message&) { ++called; });
  a.async_receive_region([&](error_code, auto&&) { ++called; });
  a.async_send(pool.allocate(100'000), [&](error_code, std::size_t) { ++called; });
  io.reset();
  CHECK(called == 0);
  CHECK(a.native_handle() == nullptr);
}

TEST_CASE("a closed connection that is kept beyond its context has no timer of the context") {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  o.remote_memory.grants = 4;
  o.remote_memory.rights = access::remote_read;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  auto io = std::make_unique<asio::io_context>(1);
  std::optional<asio_rdma::connection> a(std::in_place, *io), b(std::in_place, *io);
  a->open(pool, o);
  b->open(pool, o);
  const auto of_a = a->impl(), of_b = b->impl();
  SECTION("that was connected") {
    meet(*io, *a, *b);
    outcome<remote_region> region; // b has a timer for its lease
    a->async_request_memory(1000, access::remote_read, std::chrono::minutes(1), region.handler());
    until(*io, [&] { return region.done(); });
    CHECK(region.succeeded());
    region.value.reset();
  }
  SECTION("that was closed while it was being connected") {
    a->close();
    of_a->on_connected({});
  }
  a.reset();
  b.reset();
  io.reset();
}

TEST_CASE("a closed stream that is kept beyond its context has no timer of the context") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  auto io = std::make_unique<asio::io_context>(1);
  std::optional<asio_rdma::stream> a(std::in_place, *io), b(std::in_place, *io);
  a->open(pool);
  b->open(pool);
  const auto of_a = a->impl(), of_b = b->impl();
  meet(*io, *a, *b);
  const std::vector<char> bytes(100'000); // b does not read them, so a checks b later
  sent written;
  a->async_write_some(asio::buffer(bytes), written.handler());
  until(*io, [&] { return written.done(); });
  a->set_option(asio::socket_base::linger(true, 0));
  a.reset();
  b.reset();
  io.reset();
}

} // namespace test::connection_outlives_tests
