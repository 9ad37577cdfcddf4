// SPDX-License-Identifier: BSL-1.0
// A peer that is killed while every kind of operation of a connection waits for it.
#include "catch.hpp"
#include "connection_support.hpp"
#include "peer_process.hpp"

#include <functional>
#include <list>
#include <variant>

namespace {

using namespace test;
using asio_rdma::access;

using arrival = outcome<std::variant<registered_buffer, remote_region>>;

} // namespace

// Holds memory of the other side and lends some, and takes no message.
TEST_CASE("the peer that is killed", "[.peer]") {
  const auto port = port_of_tester();
  if (!port)
    return;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  connector initiator(io);
  asio_rdma::connection c(io, pool);
  test::connection connected;
  initiator.async_connect(c, endpoint(device_address(dev), *port), connected.handler());
  until(io, [&] { return connected.done(); });
  outcome<remote_region> mine;
  c.async_request_memory(4096, mine.handler());
  until(io, [&] { return mine.done(); });
  REQUIRE(mine.succeeded());
  outcome<void> lent;
  c.async_send_region(pool.allocate(65536), access::remote_read | access::remote_write,
                      lent.handler());
  arrival never;
  c.async_receive_region(never.handler());
  until(io, [&] { return never.done(); });
}

TEST_CASE("every operation ends with a peer that is killed, and the memory returns") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  acceptor listener(io);
  listener.open({device_address(dev), 0});
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  asio_rdma::connection c(io, pool, o);
  const std::size_t before = pool.statistics().blocks_in_use;
  test::connection accepted;
  listener.async_accept(c, accepted.handler());
  peer_process peer(listener.local_endpoint());
  arrival region;
  until(io, [&] { return accepted.done(); });
  REQUIRE(accepted.succeeded());
  c.async_receive_region(region.handler());
  until(io, [&] { return region.done(); });
  REQUIRE(region.succeeded());
  const remote_region there = std::get<remote_region>(region.value);

  outcome<message> receive;
  outcome<std::uint32_t> immediate;
  arrival next;
  outcome<void> gone;
  sent offered;
  c.async_receive(receive.handler());
  c.async_receive_immediate(immediate.handler());
  c.async_receive_region(next.handler());
  c.async_wait_disconnect(gone.handler());
  c.async_send(asio::buffer(pattern(1 << 20, 1)), offered.handler());
  // Operations that start the next one, so that some are under way at any time.
  int started = 0, ended = 0;
  std::function<void(bool)> start = [&](bool write) {
    ++started;
    const auto handler = [&, write](error_code ec, std::size_t) {
      ++ended;
      if (!ec)
        start(write);
    };
    if (write)
      c.async_write(pool.allocate(65536), there, handler);
    else
      c.async_read(pool.allocate(65536), there, handler);
  };
  constexpr int chains = 16;
  for (int i = 0; i < chains; ++i)
    start(i % 2 == 0);
  until(io, [&] { return ended > chains; });
  peer.kill();
  drain(io);

  CHECK(receive.calls == 1);
  CHECK(receive.ec);
  CHECK(immediate.calls == 1);
  CHECK(immediate.ec);
  CHECK(next.calls == 1);
  CHECK(next.ec);
  CHECK(offered.calls == 1);
  CHECK(offered.ec);
  CHECK(gone.calls == 1);
  CHECK(gone.ec == asio::error::connection_reset);
  CHECK(ended == started);
  CHECK(c.revoke() == 0); // the grant has ended
  CHECK(pool.statistics().blocks_in_use <= before);
  sent late;
  c.async_write(pool.allocate(10), there, late.handler());
  drain(io);
  CHECK(late.ec);
  c.close();
  drain(io);
  CHECK(pool.statistics().blocks_in_use == 0);
}
