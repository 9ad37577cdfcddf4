// SPDX-License-Identifier: BSL-1.0
// A peer on another host that is killed while operations of every kind are pending.
#include "catch.hpp"
#include "device/support/peer_process.hpp"
#include "device/two_hosts/hosts_support.hpp"

#include <optional>

namespace test::hosts_death_tests {
namespace {

constexpr std::size_t size = 64 * 1024;

} // namespace

TEST_CASE("the peer on the other host that is killed", "[.peer]") {
  const auto port = port_of_tester();
  if (!port)
    return;
  const device dev = device_of(2);
  const protection_domain pd(dev);
  const memory m(pd, size, all_rights);
  asio::io_context io(1);
  queue_pair qp(io);
  qp.open(pd);
  connect_options c;
  c.data = described(m.remote());
  connector initiator(io);
  connection connected;
  const endpoint to(address_of(1), *port);
  initiator.async_connect(qp, to, c, connected.handler());
  until(io, [&] { return connected.done(); });
  REQUIRE(connected.succeeded());
  sent hello;
  qp.async_send(m.buffer(0, 1), hello.handler());
  outcome<void> end;
  qp.async_wait_disconnect(end.handler());
  drain(io);
}

TEST_CASE("a peer that is killed on the other host ends all outstanding operations") {
  const int percent = GENERATE(0, 5);
  const device dev = device_of(1);
  const protection_domain pd(dev);
  const memory m(pd, size, all_rights);
  asio::io_context io(1);
  queue_pair qp(io);
  qp.open(pd);
  acceptor listener(io);
  {
    const on_host here(1);
    listener.open({address_of(1), 0});
  }
  connection accepted;
  got hello;
  qp.async_receive(m.buffer(0, 64), hello.handler());
  listener.async_accept(qp, accepted.handler());
  std::optional<peer_process> peer;
  {
    const on_host there(2);
    peer.emplace(listener.local_endpoint());
  }
  until(io, [&] { return accepted.done() && hello.done(); });
  REQUIRE(accepted.succeeded());
  REQUIRE(hello.succeeded());
  burden b(qp, m, described(accepted.value.data));
  std::optional<loss> of1, of2;
  if (percent != 0) {
    of1.emplace(1, percent);
    of2.emplace(2, percent);
  }
  until(io, [&] { return b.ended > 4 * burden::chains; });
  peer->kill();
  until(io, [&] { return b.over(); });

  INFO(b.timed_out << " timed out, " << b.reset << " reset, other: " << b.other);
  CHECK(b.timed_out + b.reset + b.failed_otherwise == burden::chains);
  CHECK(b.timed_out + b.failed_otherwise <= 1); // the operation that the device was processing
  for (const got& r : b.receives) {
    CHECK(r.calls == 1);
    CHECK(r.ec == asio::error::connection_reset);
  }
  CHECK(b.gone.calls == 1);
  CHECK(b.gone.ec == asio::error::connection_reset);
  CHECK(qp.state() == queue_pair_state::failed);
}

} // namespace test::hosts_death_tests
