// SPDX-License-Identifier: BSL-1.0
// The limits and capabilities of the personalities, as a program meets them.
#include "support/fixture.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <tuple>
#include <utility>

using namespace soft::test;

namespace {

// The result of making a queue pair with these sizes: 0, or errno.
int make(side& s, ibv_qp_type type, std::uint32_t send_elements, std::uint32_t receive_elements,
         std::uint32_t inline_bytes) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = s.cq.get();
  init.cap.max_send_wr = init.cap.max_recv_wr = 1;
  init.cap.max_send_sge = send_elements;
  init.cap.max_recv_sge = receive_elements;
  init.cap.max_inline_data = inline_bytes;
  init.qp_type = type;
  return owned_qp(ibv_create_qp(s.pd.get(), &init)) ? 0 : errno;
}

ibv_port_attr port(ibv_context& c) {
  ibv_port_attr a{};
  REQUIRE(ibv_query_port(&c, 1, &a) == 0);
  return a;
}

} // namespace

TEST_CASE("The port's MTU is at most the limit of datagrams, which is kept") {
  const auto [limit, mtu] = GENERATE(std::pair(256, IBV_MTU_256), std::pair(1024, IBV_MTU_1024),
                                     std::pair(1500, IBV_MTU_1024), std::pair(2048, IBV_MTU_2048));
  const with_settings set("max_datagram=" + std::to_string(limit));
  connected_pair p({.type = IBV_QPT_UD});
  CHECK(port(*p.context).active_mtu == mtu);
  const owned_ah way = p.a.way_here();
  const auto send = [&](int bytes) {
    ibv_sge e = p.a.element(0, static_cast<std::uint32_t>(bytes));
    ibv_send_wr wr = side::request(1, IBV_WR_SEND, e), *bad = nullptr;
    wr.wr.ud.ah = way.get();
    wr.wr.ud.remote_qpn = p.b.qp->qp_num;
    wr.wr.ud.remote_qkey = test_q_key;
    REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
    return p.a.completion().status;
  };
  CHECK(send(limit) == IBV_WC_SUCCESS);
  CHECK(send(limit + 1) == IBV_WC_LOC_LEN_ERR);
}

TEST_CASE("A personality's limits are reported and kept") {
  struct expected {
    const char* name;
    std::uint32_t send, receive, inline_bytes;
    int reported, reads;
    std::uint32_t message;
  };
  const expected table[] = {
      {"plain", 32, 32, 512, 32, 128, 1u << 31},  {"mlx5", 30, 32, 828, 30, 16, 1u << 30},
      {"irdma", 6, 6, 101, 6, 8, (1u << 31) - 1}, {"bnxt_re", 6, 6, 96, 6, 126, 1u << 30},
      {"erdma", 6, 1, 96, 1, 128, 1u << 31},      {"efa", 2, 2, 32, 2, 0, 8192}};
  for (const expected& e : table) {
    INFO(e.name);
    with_settings set(e.name);
    const ibv_qp_type type = e.reads != 0 ? IBV_QPT_RC : IBV_QPT_UD;
    const auto context = open_soft();
    side s(*context, {.type = type});
    const ibv_device_attr a = attributes(*context);
    CHECK(a.max_sge == e.reported);
    CHECK(a.max_qp_rd_atom == e.reads);
    CHECK(port(*context).max_msg_sz == e.message);
    CHECK(make(s, type, e.send, e.receive, e.inline_bytes) == 0);
    CHECK(make(s, type, e.send + 1, 1, 0) == EINVAL);
    CHECK(make(s, type, 1, e.receive + 1, 0) == EINVAL);
    CHECK(make(s, type, 1, 1, e.inline_bytes + 1) == EINVAL);
  }
}

TEST_CASE("A personality's types of queue pairs") {
  const auto types = [](const char* name) {
    with_settings set("");
    const auto context = open_soft();
    side s(*context);
    set.replace(name);
    return std::array{make(s, IBV_QPT_RC, 1, 1, 0), make(s, IBV_QPT_UC, 1, 1, 0),
                      make(s, IBV_QPT_UD, 1, 1, 0)};
  };
  CHECK(types("plain") == std::array{0, 0, 0});
  CHECK(types("mlx5") == std::array{0, 0, 0});
  CHECK(types("irdma") == std::array{0, EOPNOTSUPP, 0});
  CHECK(types("bnxt_re") == std::array{0, EOPNOTSUPP, 0});
  CHECK(types("erdma") == std::array{0, EOPNOTSUPP, EOPNOTSUPP});
  CHECK(types("efa") == std::array{EOPNOTSUPP, EOPNOTSUPP, 0});
}

TEST_CASE("A personality's shared receive queues and memory windows") {
  struct expected {
    const char* name;
    int srq, flags, windows, alloc_mw;
  };
  for (const expected& e :
       {expected{"plain", 0, 1, 1, 0}, expected{"mlx5", 0, 1, 1, 0},
        expected{"irdma", EOPNOTSUPP, 1, 0, ENOMEM}, expected{"bnxt_re", 0, 1, 1, EOPNOTSUPP},
        expected{"erdma", EOPNOTSUPP, 0, 1, EOPNOTSUPP},
        expected{"efa", EOPNOTSUPP, 0, 0, EOPNOTSUPP}}) {
    INFO(e.name);
    with_settings set(e.name);
    const auto context = open_soft();
    const owned_pd pd(ibv_alloc_pd(context.get()));
    const ibv_device_attr a = attributes(*context);
    ibv_srq_init_attr init{};
    init.attr.max_wr = init.attr.max_sge = 1;
    errno = 0;
    CHECK((owned_srq(ibv_create_srq(pd.get(), &init)) ? 0 : errno) == e.srq);
    CHECK((a.max_srq != 0) == (e.srq == 0));
    CHECK(((a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0) == (e.flags != 0));
    CHECK((a.max_mw != 0) == (e.windows != 0));
    errno = 0;
    ibv_mw* const w = ibv_alloc_mw(pd.get(), IBV_MW_TYPE_2);
    CHECK((w != nullptr ? 0 : errno) == e.alloc_mw);
    if (w != nullptr)
      CHECK(ibv_dealloc_mw(w) == 0);
  }
}

TEST_CASE("A device without atomics refuses their posts") {
  for (const auto& [name, cap, result] :
       {std::tuple("plain", IBV_ATOMIC_GLOB, 0), std::tuple("mlx5", IBV_ATOMIC_HCA, 0),
        std::tuple("irdma", IBV_ATOMIC_NONE, EINVAL)}) {
    INFO(name);
    with_settings set(name);
    connected_pair p;
    CHECK(attributes(*p.context).atomic_cap == cap);
    CHECK(p.a.remote(1, IBV_WR_ATOMIC_FETCH_AND_ADD, p.b) == result);
    if (result == 0)
      CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("A READ has fewer elements than a SEND on erdma") {
  with_settings set("erdma");
  const auto context = open_soft();
  side a(*context), b(*context);
  connect(a, b);
  // A queue pair with room for more elements than a READ may have.
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = a.cq.get();
  init.cap.max_send_wr = init.cap.max_recv_wr = 4;
  init.cap.max_send_sge = 2;
  init.cap.max_recv_sge = 1;
  init.qp_type = IBV_QPT_RC;
  owned_qp wide(ibv_create_qp(a.pd.get(), &init));
  REQUIRE(wide);
  a.qp = std::move(wide);
  REQUIRE(b.to(IBV_QPS_RESET) == 0);
  connect(a, b);
  ibv_sge elements[] = {a.element(0, 4), a.element(4, 4)};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = elements;
  wr.num_sge = 2;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(b.memory.data());
  wr.wr.rdma.rkey = b.mr->rkey;
  wr.opcode = IBV_WR_RDMA_READ;
  CHECK(ibv_post_send(a.qp.get(), &wr, &bad) == EINVAL);
  CHECK(bad == &wr);
  wr.opcode = IBV_WR_RDMA_WRITE;
  CHECK(ibv_post_send(a.qp.get(), &wr, &bad) == 0);
  CHECK(a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("A port that requires a global route always reports it") {
  for (const auto& [text, required] :
       {std::pair("mlx5", true), std::pair("mlx5,grh_required=0", false)}) {
    with_settings set{std::string(text)};
    const auto context = open_soft();
    CHECK(((port(*context).flags & IBV_QPF_GRH_REQUIRED) != 0) == required);
  }
}
