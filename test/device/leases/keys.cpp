// SPDX-License-Identifier: BSL-1.0
// The peers that a grant's key admits: if the device has memory windows, only the peer that it was
// made for.
#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/leases/lender.hpp"
#include "interposer/faults.hpp"

#include <thread>
#include <variant>

namespace test::keys_tests {
namespace {

/// A server with two clients in one protection domain. It grants memory to the first client.
struct server_of_two : talk {
  server_of_two() : talk({}, generous()) {
    second.open(pool);
    to_second.open(pool, generous());
    test::connection accepted, connected;
    listener.async_accept(to_second, accepted.handler());
    initiator.async_connect(second, listener.local_endpoint(), connected.handler());
    until([&] { return accepted.done() && connected.done(); });
    REQUIRE(accepted.succeeded());
    REQUIRE(connected.succeeded());
  }

  static connection_options generous() {
    connection_options o;
    o.remote_memory.bytes = 1 << 20;
    return o;
  }

  asio_rdma::connection &server = b, &first = a;
  asio_rdma::connection second{io}, to_second{io};
  const registered_buffer memory = filled(pool, 4096, 1);

  /// Lends `memory` to the first client.
  remote_region lend() {
    return test::lend(server, first, memory, read_write, [this](auto done) { until(done); });
  }
  error_code write(asio_rdma::connection& by, const remote_buffer& to) {
    sent s;
    by.async_write(text, to, s.handler());
    until([&] { return s.done(); });
    return s.ec;
  }
  /// Uses the key. The device refuses the access, which ends the connection.
  void is_refused(asio_rdma::connection& by, const remote_buffer& key, bool writes) {
    outcome<void> ended;
    sent s;
    by.async_wait_disconnect(ended.handler());
    const registered_buffer sink = filled(pool, 64, 3);
    if (writes)
      by.async_write(text, key, s.handler());
    else
      by.async_read(sink, key, s.handler());
    until([&] { return s.done(); });
    REQUIRE(s.ec == IBV_WC_REM_ACCESS_ERR);
    until([&] { return ended.done(); });
    CHECK(is_pattern(sink.data(), sink.size(), 3));
    CHECK(is_pattern(memory.data(), memory.size(), 1));
  }
  bool lives() {
    sent s;
    outcome<message> r;
    server.async_send(asio::buffer("x"), s.handler());
    first.async_receive(r.handler());
    until([&] { return s.done() && r.done(); });
    return s.succeeded() && r.succeeded();
  }

  const registered_buffer text = filled(pool, 64, 2);
};

/// Two connections. Completions of b's work requests are held back.
struct binding : private connections_check, talk {
  binding() : talk({}, server_of_two::generous()), faults(dev.native_handle()) {}

  /// b lends `memory`, and the bind of its key is in progress.
  void lend() {
    faults.hold_completions({nullptr, b.impl()->target_queue_pair()->number()});
    b.async_send_region(memory, read_write, lent.handler());
    while (faults.held() == 0)
      std::this_thread::yield();
    CHECK_FALSE(memory.try_read_access());
    CHECK(lent.calls == 0);
  }
  std::size_t kept() {
    memory = {};
    arrived.value = {};
    a.close();
    b.close();
    drain(io);
    return pool.statistics().blocks_in_use;
  }

  registered_buffer memory = pool.allocate(1000);
  outcome<void> lent;
  arrival arrived;
  faults::injector faults;
};

} // namespace

TEST_CASE("another client that has the key of a grant is refused") {
  server_of_two t;
  if (!t.dev.has_memory_windows())
    return not_on_this_device("a key is of use to all peers in the protection domain");
  const remote_region r = t.lend();
  const bool writes = GENERATE(false, true);
  t.is_refused(t.second, r.buffer(), writes);
  CHECK(t.lives());
  CHECK(!t.write(t.first, r.buffer()));
  CHECK(t.placed());
  CHECK(is_pattern(t.memory.data(), t.text.size(), 2));
  CHECK(t.server.revoke(t.memory) == 1);
  CHECK(t.lives());
}

TEST_CASE("the key of the region that a grant's window is bound to is of no use") {
  server_of_two t;
  if (!t.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  faults::injector faults(t.dev.native_handle());
  const remote_region r = t.lend();
  const ibv_mr& region = *faults.counts().last_bind.mr;
  CHECK(region.length == r.size());
  CHECK(region.lkey != r.buffer().rkey);
  CHECK((region.rkey == 0 || region.rkey == region.lkey));
  const bool writes = GENERATE(false, true), by_first = GENERATE(false, true);
  t.is_refused(by_first ? t.first : t.second, {r.buffer().address, r.size(), region.lkey}, writes);
}

TEST_CASE("a grant that is revoked while its key is being made") {
  binding t;
  if (!t.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  t.a.async_receive_region(t.arrived.handler());
  t.lend();
  CHECK(t.b.revoke(t.memory) == 1);
  CHECK(t.b.revoke() == 0);
  CHECK_FALSE(t.memory.try_read_access()); // a guessed key may still reach it
  t.faults.release_completions();
  t.until([&] { return t.lent.done(); });
  CHECK(t.lent.ec == error::lease_revoked);
  CHECK(t.memory.try_write_access());
  // The peer gets the next region only.
  outcome<void> next;
  t.b.async_send_region(t.memory.slice(0, 7), next.handler());
  t.until([&] { return next.done() && t.arrived.done(); });
  CHECK(next.succeeded());
  REQUIRE(t.arrived.succeeded());
  CHECK(std::get<remote_region>(t.arrived.value).size() == 7);
  CHECK(t.kept() == 0);
}

TEST_CASE("a connection that ends while the key of a grant is being made") {
  binding t;
  if (!t.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  t.lend();
  SECTION("closed") { t.b.close(); }
  SECTION("closed by the peer") { t.a.close(); }
  SECTION("after it was revoked") {
    CHECK(t.b.revoke() == 1);
    t.b.close();
    CHECK(t.b.revoke() == 0);
  }
  t.until([&] { return t.lent.done(); });
  CHECK(t.lent.ec);
  CHECK(t.lent.calls == 1);
  CHECK(t.memory.try_write_access());
  CHECK(t.kept() == 0);
}

TEST_CASE("memory that is lent before closing arrives, however late its key is made") {
  binding t;
  t.lend();
  outcome<void> closed;
  t.a.async_receive_region(t.arrived.handler());
  t.b.async_close(closed.handler());
  t.faults.release_completions();
  t.until([&] { return t.lent.done() && t.arrived.done() && closed.done(); });
  CHECK(t.lent.succeeded());
  CHECK(t.arrived.succeeded());
  CHECK(closed.succeeded());
  CHECK(t.kept() == 0);
}

TEST_CASE("a grant for which there is no memory window is refused, and the connection lives") {
  server_of_two t;
  if (!t.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  faults::injector faults(t.dev.native_handle());
  faults.fail(faults::call::alloc_mw, ENOMEM, {1, 2});
  outcome<remote_region> r;
  outcome<void> lent;
  t.first.async_request_memory(64, r.handler());
  t.server.async_send_region(t.memory, lent.handler());
  t.until([&] { return r.done() && lent.done(); });
  CHECK(r.ec == error::peer_out_of_memory);
  CHECK(lent.ec == errc::not_enough_memory);
  CHECK(t.memory.try_write_access());
  CHECK(t.lives());
  CHECK(t.lend().size() == t.memory.size());
}

} // namespace test::keys_tests
