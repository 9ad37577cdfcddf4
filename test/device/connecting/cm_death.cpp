// SPDX-License-Identifier: BSL-1.0
// A peer that is killed while operations of every kind are pending.
#include "catch.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/support/peer_process.hpp"

#include <functional>
#include <list>

namespace test::cm_death_tests {
namespace {

constexpr std::size_t size = 64 * 1024;

} // namespace

TEST_CASE("the peer of a queue pair that is killed", "[.peer]") {
  const auto port = port_of_tester();
  if (!port)
    return;
  meeting m;
  memory shared(m.pd, size, all_rights);
  connect_options c;
  c.data = described(shared.remote());
  got held[4]; // receives for the messages that the other side sends before its waiting ones
  for (std::size_t i = 0; i < 4; ++i)
    m.a.async_receive(m.ma.buffer(i * 64, 64), held[i].handler());
  const endpoint to(device_address(m.dev), *port);
  m.initiator->async_connect(m.a, to, c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  REQUIRE(m.connected.succeeded());
  sent hello;
  m.a.async_send(m.ma.buffer(1024, 1), hello.handler());
  outcome<void> end;
  m.a.async_wait_disconnect(end.handler());
  m.io.run();
}

TEST_CASE("a peer's death that leaves a receive waiting for ever, a killed process", "[mistake]") {
  const connections_check nothing_left;
  queue_pair_options patient;
  patient.rnr_retry = 7; // only the end of the connection ends a send that waits for a receive
  const bool sends = GENERATE(false, true);
  meeting m({}, patient);
  if (sends && m.dev.type() == transport::iwarp)
    return not_on_this_device("a send without a receive ends an iWARP connection");
  memory large(m.pd, size, all_rights);
  got hello;
  std::list<got> receives;
  m.b.async_receive(m.mb.buffer(0, 64), hello.handler());
  for (int i = 0; i < 20; ++i)
    m.b.async_receive(m.mb.buffer(64, 64), receives.emplace_back().handler());
  m.accept();
  peer_process peer(m.where());
  m.until([&] { return m.accepted.done() && hello.done(); });
  REQUIRE(m.accepted.succeeded());
  REQUIRE(hello.succeeded());
  const remote_buffer there = described(m.accepted.value.data);

  outcome<void> gone;
  m.b.async_wait_disconnect(gone.handler());
  std::list<sent> waiting;
  if (sends) // the peer has no receives for these sends, so the operations behind them wait too
    for (int i = 0; i < 20; ++i)
      m.b.async_send(m.mb.buffer(128, 64), waiting.emplace_back().handler());
  // Each operation starts the next one, so that some are pending at any time.
  int started = 0, ended = 0, failed_by_device = 0, reset = 0;
  std::function<void(bool)> start = [&](bool write) {
    ++started;
    const auto handler = [&, write](error_code ec, std::size_t) {
      ++ended;
      if (!ec)
        return start(write);
      failed_by_device += ec.category() == completion_category() ? 1 : 0;
      reset += ec == asio::error::connection_reset ? 1 : 0;
    };
    if (write)
      m.b.async_write(large.buffer(), there, handler);
    else
      m.b.async_read(large.buffer(), there, handler);
  };
  constexpr int chains = 32;
  for (int i = 0; i < chains; ++i)
    start(i % 2 == 0);
  m.until([&] { return sends ? waiting.front().done() : ended > chains; });
  peer.kill();
  drain(m.io);

  CHECK(gone.calls == 1);
  INFO(describe(gone.ec));
  CHECK(gone.ec == asio::error::connection_reset);
  for (const got& r : receives) {
    CHECK(r.calls == 1);
    CHECK(r.ec == asio::error::connection_reset);
  }
  for (const sent& w : waiting) {
    CHECK(w.calls == 1);
    INFO(describe(w.ec));
    failed_by_device += w.ec && w.ec.category() == completion_category() ? 1 : 0;
    CHECK((!w.ec || w.ec == asio::error::connection_reset ||
           w.ec.category() == completion_category()));
  }
  CHECK(ended == started);
  CHECK(reset + failed_by_device >= chains);
  CHECK(failed_by_device <= 1); // the operation that the device was processing
  CHECK(m.b.state() == queue_pair_state::failed);
}

} // namespace test::cm_death_tests
