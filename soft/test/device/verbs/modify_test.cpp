// SPDX-License-Identifier: BSL-1.0
// The changes of ibv_modify_qp(3) that the device refuses, by state, attribute and value.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <vector>

using namespace soft::test;

namespace {

/// A change that the device takes.
struct change {
  ibv_qp_attr attr{};
  int mask = IBV_QP_STATE;
};

/// The way of a queue pair to RTS, connected to itself.
std::vector<change> way_of(const side& s) {
  const ibv_qp_type type = s.qp->qp_type;
  change init, rtr, rts;
  init.attr.qp_state = IBV_QPS_INIT;
  init.attr.port_num = 1;
  init.attr.qkey = test_q_key;
  init.mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  init.mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  rtr.attr.qp_state = IBV_QPS_RTR;
  rtr.attr.path_mtu = IBV_MTU_1024;
  rtr.attr.dest_qp_num = s.qp->qp_num;
  rtr.attr.rq_psn = 0xff123456;
  rtr.attr.min_rnr_timer = 1;
  rtr.attr.ah_attr.port_num = 1;
  rtr.attr.ah_attr.is_global = 1;
  rtr.attr.ah_attr.grh.sgid_index = loopback_index(*s.qp->context);
  REQUIRE(ibv_query_gid(s.qp->context, 1, rtr.attr.ah_attr.grh.sgid_index,
                        &rtr.attr.ah_attr.grh.dgid) == 0);
  if (type != IBV_QPT_UD)
    rtr.mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC)
    rtr.mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  rts.attr.qp_state = IBV_QPS_RTS;
  rts.attr.sq_psn = 0x1abcdef;
  rts.attr.timeout = 31;
  rts.mask |= IBV_QP_SQ_PSN;
  if (type == IBV_QPT_RC)
    rts.mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return {init, rtr, rts};
}

int apply(const side& s, change c) { return ibv_modify_qp(s.qp.get(), &c.attr, c.mask); }
int apply_with(const side& s, change c, int further) {
  c.mask |= further;
  return apply(s, c);
}
int apply_without(const side& s, change c, int bit) {
  c.mask &= ~bit;
  return apply(s, c);
}

} // namespace

TEST_CASE("A queue pair takes the attributes that a change of its state needs, and no others") {
  const auto context = open_soft();
  side::options o;
  o.type = GENERATE(IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD);
  CAPTURE(o.type);
  const side s(*context, o);
  const std::vector<change> way = way_of(s);
  for (const change& next : way) {
    CAPTURE(next.attr.qp_state);
    for (const change& other : way)
      if (other.attr.qp_state > next.attr.qp_state)
        CHECK(apply(s, other) == EINVAL); // a state is left out
    for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
      if ((next.mask & bit) != 0 && bit != IBV_QP_STATE)
        CHECK(apply_without(s, next, bit) == EINVAL);
    for (const int bit : {int(IBV_QP_CAP), int(IBV_QP_ALT_PATH), int(IBV_QP_RATE_LIMIT)})
      CHECK(apply_with(s, next, bit) == EINVAL);
    const auto before = state_of(*s.qp);
    CHECK(apply(s, next) == 0);
    CHECK(state_of(*s.qp) == next.attr.qp_state);
    CHECK(before != next.attr.qp_state);
  }
  for (const change& again : way)
    CHECK(apply(s, again) == EINVAL);
  change error;
  error.attr.qp_state = IBV_QPS_ERR;
  error.attr.cur_qp_state = IBV_QPS_RTS;
  CHECK(apply_with(s, error, IBV_QP_CUR_STATE) == EINVAL);
  CHECK(apply_with(s, error, IBV_QP_PORT) == EINVAL);
  CHECK(apply(s, error) == 0);
}

TEST_CASE("A queue pair that is reset stays so: it becomes initialised before it can fail") {
  const auto context = open_soft();
  side s(*context);
  CHECK(s.to(IBV_QPS_RESET) == 0);
  CHECK(s.to(IBV_QPS_ERR) == EINVAL);
  CHECK(state_of(*s.qp) == IBV_QPS_RESET);
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  CHECK(s.to(IBV_QPS_ERR) == 0);
  CHECK(s.to(IBV_QPS_RESET) == 0);
  CHECK(s.to(IBV_QPS_ERR) == EINVAL);
}

TEST_CASE("A queue pair whose program is wrong about its state does not change it") {
  const auto context = open_soft();
  const side s(*context);
  const std::vector<change> way = way_of(s);
  REQUIRE(apply(s, way[0]) == 0);
  REQUIRE(apply(s, way[1]) == 0);
  change c = way[2];
  c.attr.cur_qp_state = IBV_QPS_INIT;
  CHECK(apply_with(s, c, IBV_QP_CUR_STATE) == EINVAL);
  c.attr.cur_qp_state = IBV_QPS_RTR;
  CHECK(apply_with(s, c, IBV_QP_CUR_STATE) == 0);
}

TEST_CASE("Values that the kernel refuses") {
  const auto context = open_soft();
  const side s(*context);
  const std::vector<change> way = way_of(s);
  const auto refused = [&](change c, auto set) {
    set(c.attr);
    return apply(s, c) == EINVAL;
  };
  const ibv_device_attr limits = attributes(*context);
  CHECK(refused(way[0], [](ibv_qp_attr& a) { a.port_num = 2; }));
  CHECK(refused(way[0], [&](ibv_qp_attr& a) { a.pkey_index = limits.max_pkeys; }));
  REQUIRE(apply(s, way[0]) == 0);
  CHECK(refused(way[1], [](ibv_qp_attr& a) { a.ah_attr.port_num = 0; }));
  CHECK(refused(way[1], [](ibv_qp_attr& a) { a.ah_attr.is_global = 0; }));
  CHECK(refused(way[1], [](ibv_qp_attr& a) { a.path_mtu = ibv_mtu(0); }));
  CHECK(refused(way[1], [](ibv_qp_attr& a) { a.path_mtu = ibv_mtu(IBV_MTU_4096 + 1); }));
  CHECK(refused(way[1], [&](ibv_qp_attr& a) {
    a.max_dest_rd_atomic = static_cast<std::uint8_t>(limits.max_qp_rd_atom + 1);
  }));
  REQUIRE(apply(s, way[1]) == 0);
  CHECK(refused(way[2], [](ibv_qp_attr& a) { a.timeout = 32; }));
  CHECK(refused(way[2], [&](ibv_qp_attr& a) {
    a.max_rd_atomic = static_cast<std::uint8_t>(limits.max_qp_init_rd_atom + 1);
  }));
  REQUIRE(apply(s, way[2]) == 0);
  ibv_qp_attr a{};
  ibv_qp_init_attr made{};
  REQUIRE(ibv_query_qp(s.qp.get(), &a, IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &made) == 0);
  CHECK(a.rq_psn == 0x123456); // of 24 bits
  CHECK(a.sq_psn == 0xabcdef);
}
