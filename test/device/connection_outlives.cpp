// SPDX-License-Identifier: BSL-1.0
// Connections that are destroyed after their context.
#include <catch.hpp>

#include "connection_support.hpp"

#include <chrono>
#include <memory>

using namespace test;

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
  {
    acceptor listener(*io, own_endpoint());
    connector initiator(*io);
    test::connection accepted, connected;
    listener.async_accept(b, accepted.handler());
    initiator.async_connect(a, listener.local_endpoint(), connected.handler());
    until(*io, [&] { return accepted.done() && connected.done(); });
  }
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
