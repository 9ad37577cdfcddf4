// SPDX-License-Identifier: BSL-1.0
// Rules of verbs: notification, windows, registration, the address of a peer, atomic operations.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <poll.h>

using namespace soft::test;

namespace {

using owned_mw = std::unique_ptr<ibv_mw, destroys<ibv_dealloc_mw>>;

// Binds a window to the 64 bytes of the side's memory from `first` on.
ibv_wc_status bind(side& s, ibv_mw& w, std::uint32_t key, unsigned access,
                   std::size_t first = 256) {
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw.mw = &w;
  wr.bind_mw.rkey = key;
  wr.bind_mw.bind_info = {s.mr.get(), reinterpret_cast<std::uintptr_t>(s.memory.data()) + first, 64,
                          access};
  REQUIRE(ibv_post_send(s.qp.get(), &wr, &bad) == 0);
  return s.completion().status;
}

ibv_wc_status write_at(side& s, std::uint64_t address, std::uint32_t key) {
  ibv_sge e = s.element(0, 8);
  ibv_send_wr wr = side::request(1, IBV_WR_RDMA_WRITE, e), *bad = nullptr;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = key;
  REQUIRE(ibv_post_send(s.qp.get(), &wr, &bad) == 0);
  return s.completion().status;
}

// The event of the completion queue must come.
void take_event(side& s) {
  pollfd event{s.channel->fd, POLLIN, 0};
  REQUIRE(poll(&event, 1, 10000) == 1);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(ibv_get_cq_event(s.channel.get(), &cq, &context) == 0);
  ibv_ack_cq_events(cq, 1);
}

} // namespace

TEST_CASE("A request for the next completion is not narrowed to solicited ones") {
  connected_pair p;
  REQUIRE(ibv_req_notify_cq(p.b.cq.get(), 0) == 0);
  REQUIRE(ibv_req_notify_cq(p.b.cq.get(), 1) == 0);
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.a.send(2) == 0);
  REQUIRE(p.b.completion().wr_id == 1);
  take_event(p.b);
}

TEST_CASE("A request for solicited completions is widened to all") {
  connected_pair p;
  REQUIRE(ibv_req_notify_cq(p.b.cq.get(), 1) == 0);
  REQUIRE(ibv_req_notify_cq(p.b.cq.get(), 0) == 0);
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.a.send(2) == 0);
  take_event(p.b);
}

TEST_CASE("The peer's addresses in a zero-based window begin at 0") {
  connected_pair p;
  const owned_mw w(ibv_alloc_mw(p.b.pd.get(), IBV_MW_TYPE_2));
  REQUIRE(w);
  const std::uint32_t key = ibv_inc_rkey(w->rkey);
  REQUIRE(bind(p.b, *w, key, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED) == IBV_WC_SUCCESS);
  std::memcpy(p.a.memory.data(), "in place", 8);
  CHECK(write_at(p.a, 56, key) == IBV_WC_SUCCESS);
  CHECK(std::memcmp(p.b.memory.data() + 256 + 56, "in place", 8) == 0);
  CHECK(write_at(p.a, 57, key) == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE(
    "An atomic of memory that is not aligned is refused, whatever the address of its window") {
  connected_pair p;
  const owned_mw w(ibv_alloc_mw(p.b.pd.get(), IBV_MW_TYPE_2));
  REQUIRE(w);
  const std::uint32_t key = ibv_inc_rkey(w->rkey);
  REQUIRE(bind(p.b, *w, key, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED, 257) ==
          IBV_WC_SUCCESS);
  ibv_sge e = p.a.element(0, 8);
  ibv_send_wr wr = side::request(1, IBV_WR_ATOMIC_FETCH_AND_ADD, e), *bad = nullptr;
  wr.wr.atomic.remote_addr = 8;
  wr.wr.atomic.rkey = key;
  wr.wr.atomic.compare_add = 1;
  REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
  CHECK(p.a.completion().status == IBV_WC_REM_INV_REQ_ERR);
  CHECK(next_event(*p.context) == IBV_EVENT_QP_ACCESS_ERR);
  CHECK(p.b.bytes_at(257 + 8) == std::array<std::byte, 8>());
}

TEST_CASE("A window has no rights that windows do not have") {
  connected_pair p;
  const owned_mw w(ibv_alloc_mw(p.b.pd.get(), IBV_MW_TYPE_2));
  REQUIRE(w);
  CHECK(bind(p.b, *w, ibv_inc_rkey(w->rkey), IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND) ==
        IBV_WC_MW_BIND_ERR);
}

TEST_CASE("The addresses of a registration have the same offset in a page as its memory") {
  connected_pair p;
  const auto address = reinterpret_cast<std::uintptr_t>(p.a.memory.data());
  constexpr int access = IBV_ACCESS_LOCAL_WRITE;
  const std::uint64_t page = 1u << 20;
  const owned_mr there(
      ibv_reg_mr_iova(p.a.pd.get(), p.a.memory.data(), 64, address + page, access));
  CHECK(there);
  errno = 0;
  CHECK(ibv_reg_mr_iova(p.a.pd.get(), p.a.memory.data(), 64, address + page + 4, access) ==
        nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("A region cannot be zero-based") {
  connected_pair p;
  errno = 0;
  CHECK(ibv_reg_mr(p.a.pd.get(), p.a.memory.data(), 64,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED) == nullptr);
  CHECK(errno == EOPNOTSUPP);
}

TEST_CASE("The address of a peer has a global route by a GID of the port") {
  const auto context = open_soft();
  side s(*context);
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = IBV_MTU_1024;
  a.dest_qp_num = s.qp->qp_num;
  a.min_rnr_timer = 1;
  a.ah_attr.port_num = 1;
  a.ah_attr.is_global = 1;
  a.ah_attr.grh.sgid_index = loopback_index(*context);
  ibv_gid own{};
  REQUIRE(ibv_query_gid(context.get(), 1, a.ah_attr.grh.sgid_index, &own) == 0);
  a.ah_attr.grh.dgid = own;
  constexpr int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ibv_qp_attr local = a, unknown = a;
  local.ah_attr.is_global = 0;
  unknown.ah_attr.grh.sgid_index = 255;
  CHECK(ibv_modify_qp(s.qp.get(), &local, mask) == EINVAL);
  CHECK(ibv_modify_qp(s.qp.get(), &unknown, mask) == EINVAL);
  CHECK(ibv_modify_qp(s.qp.get(), &a, mask) == 0);
}

TEST_CASE("A window is bound only to the region that its request was posted with") {
  connected_pair p;
  ibv_mw* const w = ibv_alloc_mw(p.a.pd.get(), IBV_MW_TYPE_2);
  REQUIRE(w != nullptr);
  constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
  const auto region = [&] {
    owned_mr r(ibv_reg_mr(p.a.pd.get(), p.a.memory.data(), p.a.memory.size(), rights));
    REQUIRE(r);
    return r;
  };
  owned_mr r = region();
  REQUIRE(p.a.send(1) == 0); // waits for a receive, and the next request behind it
  ibv_send_wr wr{}, *bad = nullptr;
  wr.wr_id = 2;
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.mw = w;
  wr.bind_mw.rkey = ibv_inc_rkey(w->rkey);
  wr.bind_mw.bind_info = {r.get(), reinterpret_cast<std::uintptr_t>(r->addr), 8,
                          IBV_ACCESS_REMOTE_READ};
  REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
  r.reset();
  r = region(); // perhaps at the same address
  REQUIRE(p.b.receive(3) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  const ibv_wc wc = p.a.completion();
  CHECK(wc.wr_id == 2);
  CHECK(wc.status == IBV_WC_MW_BIND_ERR);
  CHECK(ibv_dealloc_mw(w) == 0);
}

TEST_CASE("An atomic operation with a wrong length fails where it was posted alone") {
  connected_pair p;
  REQUIRE(p.a.remote(1, IBV_WR_ATOMIC_FETCH_AND_ADD, p.b, 16) == 0);
  CHECK(p.a.completion().status == IBV_WC_LOC_LEN_ERR);
  CHECK(state_of(*p.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(*p.b.qp) == IBV_QPS_RTS);
}
