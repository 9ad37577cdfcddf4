// SPDX-License-Identifier: BSL-1.0
// A completion queue that has no room for a completion: IBV_EVENT_CQ_ERR of ibv_get_async_event(3).
#include "support/fixture.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

using namespace soft::test;

TEST_CASE("A completion queue that has overflowed stays in error, with all its queue pairs") {
  connected_pair p;
  // Sends to the queue of `a`, and receives to its own.
  side c(*p.context), d(*p.context);
  ibv_qp_init_attr init{};
  init.send_cq = p.a.cq.get();
  init.recv_cq = c.cq.get();
  init.cap = {4, 4, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  c.qp.reset(ibv_create_qp(c.pd.get(), &init));
  REQUIRE(c.qp);
  connect(c, d);
  REQUIRE(ibv_resize_cq(p.a.cq.get(), 1) == 0);

  REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  REQUIRE(p.a.remote(2, IBV_WR_RDMA_WRITE, p.b) == 0);
  std::array<ibv_event_type, 3> events{};
  for (ibv_event_type& e : events)
    e = next_event(*p.context);
  std::sort(events.begin(), events.end());
  CHECK(events == std::array{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_FATAL});
  CHECK(state_of(*p.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(*c.qp) == IBV_QPS_ERR);
  CHECK(state_of(*p.b.qp) == IBV_QPS_RTS);
  CHECK(state_of(*d.qp) == IBV_QPS_RTS);

  CHECK(p.a.completion().wr_id == 1);
  // There is room now, and a request is flushed without a completion.
  REQUIRE(c.send(3) == 0);
  REQUIRE(c.receive(4) == 0);
  CHECK(c.completion().wr_id == 4);
  CHECK(p.a.is_quiet());
  CHECK_FALSE(has_event(*p.context));
}

TEST_CASE("An overflow in a flush does not keep back last WQE reached") {
  connected_pair p({.shared = true});
  for (std::uint64_t i = 1; i <= 4; ++i)
    REQUIRE(p.a.send(i) == 0); // for which there is no receive
  REQUIRE(ibv_resize_cq(p.a.cq.get(), 2) == 0);
  REQUIRE(p.a.to(IBV_QPS_ERR) == 0);
  CHECK(next_event(*p.context) == IBV_EVENT_CQ_ERR);
  CHECK(next_event(*p.context) == IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(p.a.completion().wr_id == 1);
  CHECK(p.a.completion().wr_id == 2);
  CHECK(p.a.is_quiet());
}
