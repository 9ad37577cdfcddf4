// SPDX-License-Identifier: BSL-1.0
// Habits of adapters: how queue pairs end, how connecting is refused, how a device is removed.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/every_receive.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"
#include "link/shared_receives_impl.hpp"

#include <boost/asio/detached.hpp>

#include <cerrno>
#include <chrono>
#include <vector>

namespace test::adapter_habits_tests {
namespace {

ibv_ah_attr way_of(const queue_pair& qp) {
  error_code ec;
  const ibv_qp_attr result = qp.query(IBV_QP_AV, ec);
  REQUIRE_FALSE(ec);
  return result.ah_attr;
}

/// No vendor: the adapter has none.
ibv_ece features_of(const queue_pair& qp) {
  ibv_ece result{};
  const int e = ibv_query_ece(qp.native_handle(), &result);
  CHECK((e == 0 || e == EOPNOTSUPP));
  return e == 0 ? result : ibv_ece{};
}

} // namespace

TEST_CASE("connections that end on an adapter leave as many shared receives as there were",
          "[h1]") {
  const adapter a("mlx5,taken_receives=1");
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
  for (const shared_receives* r : {&of_a, &of_b}) {
    const std::uint32_t all = r->options().receives;
    CHECK(count_receives(t.io, t.pd, t.dev, r->impl()->queue(), all + 1) == all);
  }
}

TEST_CASE("a small READ is in its memory before its completion is polled", "[h4]") {
  const adapter a("mlx5"); // would copy it while it is polled if all requests were signaled
  pair p;
  p.mb.put(0, "12345678");
  sent s;
  p.a.async_read(p.ma.buffer(104, 8), p.mb.remote(0, 8), s.handler());
  until({}, [&] { return p.ma.text(104, 8) == "12345678"; });
  CHECK_FALSE(s.done());
  p.until([&] { return s.done(); });
  CHECK(s.succeeded());
}

TEST_CASE("the administrator's type of service is the traffic class of both queue pairs", "[h2]") {
  const adapter a("plain,tos=106");
  queue_pair_options chosen;
  SECTION("by default") {
    meeting m;
    m.meet();
    CHECK(int(way_of(m.a).grh.traffic_class) == 106);
    CHECK(int(way_of(m.b).grh.traffic_class) == 106);
  }
  SECTION("unless the queue pair has options of its own") {
    chosen.traffic_class = 0;
    chosen.service_level = 3;
    meeting m(chosen);
    m.meet();
    CHECK(int(way_of(m.a).grh.traffic_class) == 0);
    CHECK(int(way_of(m.a).sl) == 3);
    CHECK(int(way_of(m.b).grh.traffic_class) == 106);
    CHECK(int(way_of(m.b).sl) == 0);
  }
  SECTION("but not without the connection manager") {
    pair p;
    CHECK(int(way_of(p.a).grh.traffic_class) == 0);
    chosen.traffic_class = 32;
    chosen.service_level = 3;
    pair other(chosen, {});
    CHECK(int(way_of(other.a).grh.traffic_class) == 32);
    CHECK(int(way_of(other.a).sl) == 3);
    CHECK(int(way_of(other.b).grh.traffic_class) == 0);
  }
}

TEST_CASE("a connection that is refused as stale is tried again", "[h5]") {
  const adapter a("plain,stale=2");
  meeting m;
  m.accept();
  m.connect();
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.succeeded());
  m.until([&] { return m.accepted.done(); });
  CHECK(m.carries("not stale"));
}

TEST_CASE("a connection that stays stale is rejected within the time of its endpoint", "[h5]") {
  adapter a("plain,fail=connect:all:stale");
  meeting m;
  connect_options c;
  c.timeout = std::chrono::milliseconds(200);
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::rejected);
  CHECK(soft_get_faults() <= 5); // after 0, 10, 30, 70 and 150 ms
  a.become("plain");
  m.check_next_attempt();
}

TEST_CASE("an attempt whose repetition is pending can be ended", "[h5]") {
  const adapter a("plain,fail=connect:all:stale");
  meeting m;
  m.connect();
  m.until([&] { return soft_get_faults() >= 4; }); // the next pause takes 80 ms
  SECTION("by cancellation") {
    m.initiator->cancel();
    m.until([&] { return m.connected.done(); });
    CHECK(m.connected.ec == asio::error::operation_aborted);
    CHECK(m.a.state() == queue_pair_state::open);
  }
  SECTION("by closing the queue pair") {
    m.a.close();
    m.until([&] { return m.connected.done(); });
    CHECK(m.connected.ec == asio::error::operation_aborted);
  }
  m.listener->close();
  drain(m.io);
  CHECK(m.connected.calls == 1);
}

TEST_CASE("queue pairs enable the features of enhanced connection establishment that both have",
          "[h11]") {
  struct sides {
    const char *a, *b;
    std::uint32_t vendor_a, vendor_b, options;
  };
  const auto s =
      GENERATE(sides{"mlx5", "mlx5", 0x15b3, 0x15b3, 0x30000002},
               sides{"mlx5", "mlx5,ece=2", 0x15b3, 0x15b3, 2},
               sides{"mlx5,ece=2", "mlx5", 0x15b3, 0x15b3, 2}, sides{"mlx5", "plain", 0x15b3, 0, 0},
               sides{"plain", "mlx5", 0, 0x15b3, 0}, sides{"plain", "plain", 0, 0, 0});
  CAPTURE(s.a, s.b);
  adapter a(s.a);
  meeting m;
  m.b.close();
  a.become(s.b);
  m.b.open(m.pd);
  m.meet();
  const ibv_ece of_a = features_of(m.a), of_b = features_of(m.b);
  CHECK(of_a.vendor_id == s.vendor_a);
  CHECK(of_b.vendor_id == s.vendor_b);
  CHECK(of_a.options == s.options);
  CHECK(of_b.options == s.options);
  CHECK(m.carries("with or without"));
}

TEST_CASE("queue pairs that a program connects itself have the global route that a port requires",
          "[h14]") {
  const char* const settings =
      GENERATE("plain,grh_required=1", "plain,grh_required=1,infiniband=1");
  CAPTURE(settings);
  const adapter a(settings);
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

TEST_CASE("connecting that takes long blocks nothing else of the context", "[h17]") {
  meeting m;
  acceptor other(m.io, {device_address(m.dev), 0});
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  connection slow_one_accepted, slow_one;
  const adapter a("plain,delay=connect:1:4s");
  other.async_accept(d, slow_one_accepted.handler());
  m.initiator->async_connect(c, other.local_endpoint(), slow_one.handler());
  until({&m.io}, [] { return soft_get_faults() == 1; });
  m.meet();
  CHECK(m.carries("before the other"));
  CHECK_FALSE(slow_one.done());
  m.until([&] { return slow_one.done() && slow_one_accepted.done(); });
  CHECK(slow_one.succeeded());
}

TEST_CASE("a goodbye that takes long arrives, though its program has ended") {
  connection_options options;
  options.remote_memory.bytes = 4096;
  talk t(options, options);
  const adapter a("plain,delay=request:all:5ms");
  outcome<void> closed;
  error_code heard;
  const auto end = [&](const error_code& ec, const auto&...) {
    heard = ec;
    t.b.close();
  };
  const std::vector<char> many(1 << 20);
  const registered_buffer words = t.pool.allocate(8);
  outcome<remote_region> region;
  std::function<void(const error_code&)> again;
  error_code expected = asio::error::broken_pipe;
  SECTION("after a receive") {
    t.b.async_receive([&](const error_code& ec, const message&) { end(ec); });
    expected = asio::error::eof;
  }
  SECTION("after a send that has been offered") {
    t.b.async_send(asio::buffer(many), end);
    t.until([&] { return t.a.statistics().frames_received != 0; });
  }
  SECTION("after a wait for memory of the peer") {
    t.b.async_receive_region([&](const error_code& ec, auto&&...) { end(ec); });
    expected = asio::error::eof;
  }
  SECTION("after operations on the peer's memory, and a request for such memory") {
    t.b.async_request_memory(8, region.handler());
    t.until([&] { return region.done(); });
    REQUIRE(region.succeeded());
    const bool asks = GENERATE(false, true);
    // From one handler to the next, until the end.
    again = [&, asks](const error_code& ec) {
      if (ec)
        return end(ec);
      if (asks)
        t.b.async_request_memory(8, [&](const error_code& e, const remote_region&) { again(e); });
      else
        t.b.async_read(words, region.value, [&](const error_code& e, std::size_t) { again(e); });
    };
    again({});
  }
  t.a.async_close(closed.handler());
  t.until([&] { return heard && closed.done(); });
  CHECK(heard == expected);
  CHECK(closed.succeeded());
}

TEST_CASE("a goodbye that does not arrive delays its program for a second") {
  talk t;
  const adapter a("plain,delay=request:2:600s"); // the second is that of the answer
  outcome<void> closed;
  outcome<message> end;
  t.b.async_receive(end.handler());
  t.a.async_close(closed.handler());
  t.until([&] { return end.done(); });
  CHECK(end.ec == asio::error::eof);
  CHECK_FALSE(closed.done());
}

TEST_CASE("a device that does not answer a READ ends what waits for it") {
  const adapter a("plain,delay=read:all:600s");
  connection_options options;
  options.read_timeout = std::chrono::milliseconds(50);
  options.keep_alive = {};
  SECTION("a connection that reads an offered message") {
    talk t(options, options);
    const std::uint64_t idle = t.pool.statistics().bytes_in_use;
    sent s;
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.a.async_send(asio::buffer(pattern(1 << 20, 1)), s.handler());
    t.until([&] { return r.done() && s.done(); });
    CHECK(r.ec == asio::error::timed_out);
    CHECK(s.ec);
    t.b.close();
    t.a.close();
    CHECK(t.pool.statistics().bytes_in_use < idle);
  }
  SECTION("a stream that reads offered bytes") {
    stream_options of_stream;
    of_stream.read_timeout = options.read_timeout;
    of_stream.keep_alive = {};
    stream_pair p(of_stream, of_stream);
    const registered_buffer bytes = p.pool.allocate(1 << 20);
    const registered_buffer into = p.pool.allocate(1 << 20);
    sent w, r;
    asio::async_read(p.b, mutable_buffer(into), r.handler());
    p.a.async_write_some(bytes, w.handler());
    p.until([&] { return r.done() && w.done(); });
    CHECK(r.ec == asio::error::timed_out);
  }
}

} // namespace test::adapter_habits_tests
