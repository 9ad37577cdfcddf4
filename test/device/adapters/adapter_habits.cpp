// SPDX-License-Identifier: BSL-1.0
// Habits of adapters: how queue pairs end, how connecting is refused, how a device is removed.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/detached.hpp>

#include <vector>

namespace test::adapter_habits_tests {

TEST_CASE("connections that end on an adapter leave as many shared receives as there were",
          "[h1]") {
  const adapter a("mlx5");
  talk t({}, shared_receives_options{});
  const shared_receives of_a(t.io, t.pool), of_b(t.io, t.pool);
  for (int i = 0; i < 40; ++i) {
    asio_rdma::connection a2(t.io, of_a), b2(t.io, of_b);
    test::connection accepted, connected;
    t.listener.async_accept(b2, accepted.handler());
    t.initiator.async_connect(a2, t.listener.local_endpoint(), connected.handler());
    t.until([&] { return accepted.done() && connected.done(); });
    REQUIRE(accepted.succeeded());
    REQUIRE(connected.succeeded());
    // Messages are in its receives, unpolled, when it ends.
    for (int n = 0; n < 3; ++n)
      a2.async_send(asio::buffer("some", 4), asio::detached);
    b2.close();
    a2.close();
    t.until([&] { return of_a.statistics().links == 0 && of_b.statistics().links == 0; });
    REQUIRE(of_b.statistics().posted == of_b.options().receives);
    REQUIRE(of_a.statistics().posted == of_a.options().receives);
  }
}

TEST_CASE("a small READ is in its memory when it completes", "[h4]") {
  const adapter a("mlx5"); // copies it while the completion is polled
  pair p;
  p.mb.put(0, "12345678");
  sent s;
  p.a.async_read(p.ma.buffer(100, 8), p.mb.remote(0, 8), s.handler());
  p.until([&] { return s.done(); });
  CHECK(s.succeeded());
  CHECK(p.ma.text(100, 8) == "12345678");
}

TEST_CASE("a connection that is refused as stale is tried again", "[h5][!shouldfail]") {
  const adapter a("plain,stale=2");
  meeting m;
  m.accept();
  m.connect();
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.succeeded());
}

TEST_CASE("operations end and their context becomes idle when an adapter is removed", "[h6]") {
  const adapter a("mlx5");
  talk t;
  outcome<message> r;
  outcome<void> gone, of_b;
  std::vector<sent> s(40); // more than a connection posts
  const auto text = pattern(100'000, 1);
  t.a.async_receive(r.handler());
  t.a.async_wait_disconnect(gone.handler());
  t.b.async_wait_disconnect(of_b.handler());
  for (sent& each : s)
    t.a.async_send(asio::buffer(text), each.handler());
  SECTION("reported by an event") { soft_set("mlx5,event=now:device_fatal"); }
  SECTION("reported, and closed by the program") {
    soft_set("mlx5,event=now:device_fatal");
    t.a.close();
    t.b.close();
  }
  t.until([&] { return r.done() && gone.done() && s.back().done() && of_b.done(); });
  CHECK(r.ec);
  for (const sent& each : s)
    CHECK(each.calls == 1);
  t.a.close();
  t.b.close();
  t.listener.close();
  drain(t.io);
}

TEST_CASE("the memory of operations is free again after an adapter was removed",
          "[h6][!shouldfail]") {
  const adapter a("mlx5");
  talk t;
  outcome<void> gone;
  t.a.async_wait_disconnect(gone.handler());
  soft_set("mlx5,event=now:device_fatal");
  t.until([&] { return gone.done(); });
  t.a.close();
  t.b.close();
  t.listener.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("queue pairs that a program connects itself have the global route that a port requires",
          "[h14]") {
  const adapter a("plain,grh_required=1");
  pair p;
  CHECK(p.carries("routed"));
}

TEST_CASE("slow creation and destruction delay, and end, connections", "[h17]") {
  const adapter a("plain,create=2ms,destroy=2ms");
  stream_pair p;
  sent w;
  p.a.async_write_some(asio::buffer("some", 4), w.handler());
  p.until([&] { return w.done(); });
  CHECK(w.succeeded());
  p.a.close();
  p.b.close();
  drain(p.io);
}

} // namespace test::adapter_habits_tests
