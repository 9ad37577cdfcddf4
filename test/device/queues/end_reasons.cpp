// SPDX-License-Identifier: BSL-1.0
// The reason with which a queue pair ends, if an event of the device tells it.
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <algorithm>
#include <array>

namespace test::end_reasons_tests {

TEST_CASE("a fatal event of a queue pair ends its operations, and no others'") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  got of_a, of_b;
  outcome<void> disconnect;
  p.a.async_receive(p.ma.buffer(0, 8), of_a.handler());
  p.b.async_receive(p.mb.buffer(0, 8), of_b.handler());
  p.a.async_wait_disconnect(disconnect.handler());
  faults.raise_qp_event(p.a.native_handle(), IBV_EVENT_QP_FATAL);
  p.until([&] { return of_a.done() && disconnect.done(); });
  CHECK(of_a.ec == error::queue_pair_fatal);
  CHECK(disconnect.ec == error::queue_pair_fatal);
  CHECK(p.a.state() == queue_pair_state::failed);
  if (p.dev.type() != transport::iwarp) {
    CHECK(of_b.calls == 0);
    CHECK(p.b.state() == queue_pair_state::connected);
  }
}

TEST_CASE("an event that the peer has caused names the peer") {
  pair p;
  const auto type = GENERATE(IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR);
  faults::injector faults(p.dev.native_handle());
  outcome<void> disconnect;
  p.a.async_wait_disconnect(disconnect.handler());
  faults.raise_qp_event(p.a.native_handle(), type);
  p.until([&] { return disconnect.done(); });
  CHECK(disconnect.ec == error::peer_access_refused);
  CHECK(disconnect.ec == errc::permission_denied);
}

// The flush and the event are both there when the context runs for the first time.
TEST_CASE("flushed receives report the reason that a waiting event tells") {
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::busy, completion_mode::manual);
  CAPTURE(int(mode));
  completion_queue_options queues;
  queues.mode = mode;
  pair p(queues);
  faults::injector faults(p.dev.native_handle());
  std::array<got, 3> receives;
  outcome<void> disconnect;
  for (std::size_t i = 0; i < receives.size(); ++i)
    p.a.async_receive(p.ma.buffer(8 * i, 8), receives[i].handler());
  p.a.async_wait_disconnect(disconnect.handler());
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  REQUIRE(ibv_modify_qp(p.a.native_handle(), &attr, IBV_QP_STATE) == 0);
  faults.raise_qp_event(p.a.native_handle(), IBV_EVENT_QP_ACCESS_ERR);
  const auto all_done = [&] {
    return disconnect.done() &&
           std::all_of(receives.begin(), receives.end(), [](const got& r) { return r.done(); });
  };
  while (!all_done()) {
    p.cq.poll();
    p.io.restart();
    p.io.poll();
  }
  CHECK(disconnect.ec == error::peer_access_refused);
  for (const got& r : receives)
    CHECK(r.ec == error::peer_access_refused);
}

} // namespace test::end_reasons_tests
