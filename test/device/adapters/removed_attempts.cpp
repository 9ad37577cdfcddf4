// SPDX-License-Identifier: BSL-1.0
// An adapter is removed while connections are made. The connection manager tells its ids before the
// device's functions fail, or afterwards.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/connection/connection_support.hpp"

#include <optional>
#include <string>
#include <vector>

namespace test::removed_attempts_tests {
namespace {

/// The removal of mlx5. Its end is not awaited by tests that fail.
class removal {
public:
  explicit removal(std::string order) : order_(std::move(order)) {}
  ~removal() { finish(); }

  void begin() { device_.become(("mlx5," + order_ + "event=now:device_fatal").c_str()); }
  void finish() { device_.become("mlx5,event=now:device_fatal"); }

private:
  adapter device_{"mlx5"};
  std::string order_;
};

constexpr const char *ids_first = "removal_notice=600s,", *at_once = "", *ids_last = "ids_last=1,";
const char* any_order() { return GENERATE(ids_first, at_once, ids_last); }

/// A request that arrived, and the attempt that sent it and waits for the answer. Each side has a
/// context.
struct requested {
  requested() {
    listener.async_wait_request(request.handler());
    initiator.async_connect(a, std::vector{listener.local_endpoint(), next.local_endpoint()},
                            connected.handler());
    until({&here, &there}, [&] { return request.done(); });
  }

  device dev = open_device();
  protection_domain pd{dev};
  outcome<connection_request> request, other;
  connection connected, accepted;
  asio::io_context here{1}, there{1};
  acceptor listener{there, {device_address(dev), 0}}, next{there, {device_address(dev), 0}};
  connector initiator{here};
  queue_pair a{here, pd}, b{there, pd};
};

} // namespace

TEST_CASE("an attempt ends at once when its device is removed, although endpoints are left",
          "[h6]") {
  removal r(any_order());
  requested t;
  t.next.async_wait_request(t.other.handler());
  r.begin();
  until({&t.here, &t.there}, [&] { return t.connected.done() && t.other.done(); });
  CHECK(t.connected.ec == error::device_removed);
  CHECK(t.other.ec == error::device_removed); // no request
  t.listener.async_accept(std::move(t.request.value), t.b, t.accepted.handler());
  until({&t.here, &t.there}, [&] { return t.accepted.done(); });
  CHECK(t.accepted.ec == error::device_removed);
}

TEST_CASE("an acceptance ends when its device is removed before the connector has confirmed it",
          "[h6]") {
  removal r(any_order());
  requested t;
  t.listener.async_accept(std::move(t.request.value), t.b, t.accepted.handler());
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(t.b.native_handle(), &attr, IBV_QP_STATE, &init) == 0);
  REQUIRE(attr.qp_state == IBV_QPS_RTS);
  REQUIRE_FALSE(t.accepted.done());
  r.begin();
  until(t.there, [&] { return t.accepted.done(); });
  CHECK(t.accepted.ec == error::device_removed);
  REQUIRE_FALSE(t.connected.done()); // its context did not run
  until(t.here, [&] { return t.connected.done(); });
  CHECK(t.connected.ec == error::device_removed);
}

TEST_CASE("a request of a removed device is no request to an acceptor at all addresses", "[h6]") {
  removal r(ids_first);
  meeting m;
  acceptor everywhere(m.io, endpoint(asio::ip::address_v4::any(), 0));
  const endpoint where(device_address(m.dev), everywhere.local_endpoint().port());
  constexpr std::size_t ids = 6;
  const int before = device_objects()[ids];
  m.initiator->async_connect(m.a, where, m.connected.handler());
  m.until([&] { return device_objects()[ids] == before + 2; }); // that of the request, too
  for (int turn = 0; turn != 3; ++turn)
    m.io.poll(); // the acceptor keeps the request
  r.begin();
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::device_removed);
  everywhere.async_accept(m.b, m.accepted.handler());
  m.io.restart();
  m.io.poll();
  CHECK_FALSE(m.accepted.done());
  everywhere.close();
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.ec == asio::error::operation_aborted);
}

TEST_CASE("connections end, and their objects with them, before the functions of a removed device "
          "fail",
          "[h6]") {
  removal r(ids_first);
  const object_counts lost = lost_objects();
  talk t;
  outcome<message> received;
  outcome<void> gone, of_b;
  sent s;
  const auto text = pattern(300'000, 1);
  t.a.async_receive(received.handler());
  t.a.async_wait_disconnect(gone.handler());
  t.b.async_wait_disconnect(of_b.handler());
  t.a.async_send(asio::buffer(text), s.handler());
  r.begin();
  t.until([&] { return received.done() && gone.done() && of_b.done() && s.done(); });
  for (const error_code& ec : {received.ec, gone.ec, of_b.ec, s.ec})
    CHECK(ec == error::device_removed);
  CHECK_FALSE(t.dev.is_removed());
  t.a.close();
  t.b.close();
  t.listener.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
  CHECK(t.pool.trim() != 0);
  r.finish();
  CHECK(lost_objects() == lost);
}

} // namespace test::removed_attempts_tests
