// SPDX-License-Identifier: BSL-1.0
// A peer that is killed while every kind of operation of a connection waits for it.
#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/support/ending.hpp"
#include "device/support/peer_process.hpp"

#include <deque>
#include <functional>
#include <variant>

namespace test::connection_death_tests {
namespace {

using asio_rdma::access;

using arrival = outcome<std::variant<registered_buffer, remote_region>>;

/// A connection whose peer is another process, which has lent this side a region.
struct to_other_process {
  to_other_process() {
    listener.open({device_address(dev), 0});
    o.remote_memory.bytes = 1 << 20;
    o.gather = false; // each message takes a receive of the peer
    c.open(pool, o);
    test::connection accepted;
    listener.async_accept(c, accepted.handler());
    peer.emplace(listener.local_endpoint());
    arrival region;
    until([&] { return accepted.done(); });
    REQUIRE(accepted.succeeded());
    c.async_receive_region(region.handler());
    until([&] { return region.done(); });
    REQUIRE(region.succeeded());
    before = pool.statistics().blocks_in_use; // with the receives
    there = std::get<remote_region>(region.value);
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  void gives_everything_back() {
    CHECK(c.revoke() == 0); // the grants have ended
    CHECK(pool.statistics().blocks_in_use <= before);
    c.close();
    drain(io);
    CHECK(pool.statistics().blocks_in_use == 0);
  }

  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io{1};
  acceptor listener{io};
  connection_options o;
  asio_rdma::connection c{io};
  std::size_t before = 0; // blocks in use
  std::optional<peer_process> peer;
  remote_region there; // memory of the peer
};

} // namespace

// Holds memory of the other side, lends some, and receives no message.
TEST_CASE("the peer of a connection that is killed or stopped", "[.peer]") {
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
  asio_rdma::access rights = access::remote_read | access::remote_write;
  if (dev.has_atomics())
    rights = rights | access::remote_atomic;
  c.async_send_region(pool.allocate(65536), rights, lent.handler());
  arrival never;
  c.async_receive_region(never.handler());
  until(io, [&] { return never.done(); });
}

TEST_CASE("every operation ends with a peer that is killed, and the memory returns") {
  to_other_process t;
  auto& c = t.c;
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
  // Each operation starts the next one, so that some are pending at any time.
  int started = 0, ended = 0;
  std::vector<error_code> reasons;
  const int kinds = t.dev.has_atomics() ? 4 : 2;
  std::function<void(int)> start = [&](int kind) {
    ++started;
    const auto handler = [&, kind](error_code ec, std::uint64_t) {
      ++ended;
      if (ec)
        reasons.push_back(ec);
      else
        start(kind);
    };
    if (kind == 0)
      c.async_write(t.pool.allocate(65536), t.there, handler);
    else if (kind == 1)
      c.async_read(t.pool.allocate(65536), t.there, handler);
    else if (kind == 2)
      c.async_fetch_add(t.there, 1, handler);
    else
      c.async_compare_and_swap(t.there, 0, 1, handler);
  };
  constexpr int chains = 16;
  for (int i = 0; i < chains; ++i)
    start(i % kinds);
  t.until([&] { return ended > chains; });
  t.peer->kill();
  drain(t.io);

  // The region may end before the connection.
  const auto is_reason = [](const error_code& ec) {
    return ec == asio::error::connection_reset || ec == IBV_WC_REM_ACCESS_ERR;
  };
  const auto check = [&](const auto& o) {
    INFO(describe(o.ec));
    CHECK(o.calls == 1);
    CHECK(is_reason(o.ec));
  };
  check(receive);
  check(immediate);
  check(next);
  check(offered);
  check(gone);
  CHECK(gone.ec == asio::error::connection_reset);
  CHECK(ended == started);
  CHECK(reasons.size() == chains);
  for (const error_code& ec : reasons) {
    INFO(describe(ec));
    CHECK(is_reason(ec));
  }
  sent late;
  c.async_write(t.pool.allocate(10), t.there, late.handler());
  drain(t.io);
  CHECK(late.ec);
  t.gives_everything_back();
}

// A stopped process answers and receives nothing. When its receives are used up, everything sent to
// it waits.
TEST_CASE("operations that wait for a peer's process end with that process") {
  to_other_process t;
  auto& c = t.c;
  t.peer->stop();
  allocation_count count;
  std::deque<ending> ends, waits; // `waits` are those that a close ends
  const auto next = [&] {
    return ending_handler{&ends.emplace_back(), &count};
  };
  const auto wait = [&] {
    return ending_handler{&waits.emplace_back(), &count};
  };
  const auto plain = pattern(100'000, 1);
  registered_buffer registered = filled(t.pool, 100'000, 2), lent = t.pool.allocate(100);
  std::vector<std::uint8_t> to(100);
  const bool closes = GENERATE(false, true);
  CAPTURE(closes);
  // The messages for which the peer has receives are sent; the others wait.
  std::vector<sent> messages(2 * t.o.receives);
  for (auto& m : messages)
    c.async_send(asio::buffer(plain, 100), m.handler());
  t.until([&] { return c.statistics().credit_waits != 0; });
  c.async_send(asio::buffer(plain), next());
  c.async_send(registered, next());
  c.async_send(const_buffer(registered), 5, next());
  c.async_write(t.pool.allocate(10), t.there, 1, next()); // with immediate data
  c.async_request_memory(100, wait());
  c.async_renew(t.there, std::chrono::minutes(1), wait());
  c.async_send_region(lent, next());
  c.async_send_region(t.there, next());
  c.async_receive(wait());
  c.async_receive(t.pool.allocate(100), wait());
  c.async_receive(asio::buffer(to), wait());
  c.async_receive_immediate(wait());
  c.async_receive_region(wait());
  c.async_wait_disconnect(next());
  if (closes)
    c.async_close(next());
  t.there.reset();
  t.until([&] {
    return std::count_if(messages.begin(), messages.end(), [](auto& m) { return m.done(); }) > 5;
  });
  t.peer->kill();
  drain(t.io);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    CAPTURE(i, describe(ends[i].ec));
    CHECK(ends[i].calls == 1);
    CHECK(ends[i].ec == asio::error::connection_reset);
  }
  const error_code why = closes ? asio::error::operation_aborted : asio::error::connection_reset;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    CAPTURE(i, describe(waits[i].ec));
    CHECK(waits[i].calls == 1);
    CHECK(waits[i].ec == why);
  }
  for (const sent& m : messages)
    CHECK((m.succeeded() || m.ec == asio::error::connection_reset));
  CHECK(!messages.back().succeeded());
  CHECK(!in_use(registered));
  CHECK(!in_use(lent));
  registered = lent = {};
  t.gives_everything_back();
}

// On iWARP this side sends nothing before the connector has, not even a probe.
TEST_CASE("a connector that sends nothing ends the connection on iWARP") {
  meeting m;
  const memory_pool pool(m.pd);
  connection_options o;
  o.keep_alive = std::chrono::milliseconds(100);
  asio_rdma::connection served(m.io);
  served.open(pool, o);
  connect_options how;
  how.data = served.impl()->hello();
  m.listener->async_accept(served, m.accepted.handler());
  m.initiator->async_connect(m.a, m.where(), how, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  REQUIRE(m.accepted.succeeded());
  if (m.dev.type() != transport::iwarp)
    return not_on_this_device("a side that must send first");
  outcome<void> ended;
  served.async_wait_disconnect(ended.handler());
  m.until([&] { return ended.done(); });
  CHECK(ended.ec == asio::error::timed_out);
}

} // namespace test::connection_death_tests
