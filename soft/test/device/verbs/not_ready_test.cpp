// SPDX-License-Identifier: BSL-1.0
// Receivers that are not ready: the retries of the sender, and the time that the receiver asks for.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>

using namespace soft::test;
using namespace std::chrono_literals;

namespace {

// Two sides that are connected. `a` retries so often, and `b` asks for the time that `timer` stands
// for (ibv_modify_qp(3)).
struct impatient_pair {
  impatient_pair(std::uint8_t retries, std::uint8_t timer)
      : context(open_soft()), a(*context), b(*context) {
    for (side* const s : {&a, &b}) {
      REQUIRE(s->to(IBV_QPS_INIT) == 0);
      REQUIRE(s->to(IBV_QPS_RTR, s == &a ? &b : &a) == 0);
    }
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 8;
    attr.rnr_retry = retries;
    REQUIRE(ibv_modify_qp(a.qp.get(), &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    REQUIRE(b.to(IBV_QPS_RTS) == 0);
    attr.min_rnr_timer = timer;
    REQUIRE(ibv_modify_qp(b.qp.get(), &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == 0);
  }
  owned_context context;
  side a, b;
};

} // namespace

TEST_CASE("A request that finds no receive fails after its retries, each of which waits") {
  impatient_pair p(2, 20); // 10.24 ms
  const auto posted = clock::now();
  REQUIRE(p.a.send(1) == 0);
  const ibv_wc wc = p.a.completion();
  CHECK(clock::now() - posted >= 2 * 10'240us);
  CHECK(wc.wr_id == 1);
  CHECK(wc.status == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(state_of(*p.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(*p.b.qp) == IBV_QPS_RTS);
}

TEST_CASE("A request without retries that finds no receive fails at once") {
  impatient_pair p(0, 0);
  REQUIRE(p.a.send(1) == 0);
  CHECK(p.a.completion().status == IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_CASE("A request that finds no receive succeeds if one is posted before its retries are over") {
  impatient_pair p(6, 0); // 655.36 ms
  connected_pair other;
  for (std::uint64_t n = 1; n <= 8; ++n) { // more than the retries: each request has its own
    REQUIRE(p.a.send(n) == 0);
    REQUIRE(other.b.receive(n) == 0);
    REQUIRE(other.a.send(n) == 0);
    REQUIRE(other.a.completion().wr_id == n); // the device has tried the request before this one
    CHECK(p.a.is_quiet());
    REQUIRE(p.b.receive(n) == 0);
    const ibv_wc sent = p.a.completion();
    CHECK(sent.wr_id == n);
    CHECK(sent.status == IBV_WC_SUCCESS);
    CHECK(p.b.completion().wr_id == n);
  }
}
