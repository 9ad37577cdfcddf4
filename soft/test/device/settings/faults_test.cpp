// SPDX-License-Identifier: BSL-1.0
// Faults within one process.
#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <map>

using namespace soft::test;

TEST_CASE("The third SEND fails with the status that was set, and none of it reaches the peer") {
  connected_pair p;
  with_settings set("fail=send:3:rnr_retry");
  for (std::uint64_t i = 1; i <= 4; ++i)
    REQUIRE(p.b.receive(i) == 0);
  for (std::uint64_t i = 1; i <= 4; ++i)
    REQUIRE(p.a.send(i) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  const ibv_wc failed = p.a.completion();
  CHECK(failed.wr_id == 3);
  CHECK(failed.status == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(p.a.completion().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(p.b.completion().wr_id == 1);
  CHECK(p.b.completion().wr_id == 2);
  CHECK(p.b.is_quiet());
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(p.a.qp.get(), &a, IBV_QP_STATE, &init) == 0);
  CHECK(a.qp_state == IBV_QPS_ERR);
  CHECK(soft_get_faults() == 1);
}

TEST_CASE("A fault is of one kind of request, or of any") {
  for (const ibv_wr_opcode o : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    connected_pair p;
    with_settings set("fail=send:1:fatal,fail=write:2:rem_access,fail=read:2:rem_op,"
                      "fail=atomic:2:rem_inv_req");
    REQUIRE(p.a.remote(1, o, p.b) == 0);
    REQUIRE(p.a.remote(2, o, p.b) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    const ibv_wc_status wanted = o == IBV_WR_RDMA_WRITE  ? IBV_WC_REM_ACCESS_ERR
                                 : o == IBV_WR_RDMA_READ ? IBV_WC_REM_OP_ERR
                                                         : IBV_WC_REM_INV_REQ_ERR;
    CHECK(p.a.completion().status == wanted);
  }
  connected_pair p;
  with_settings set("fail=request:2:bad_resp");
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_READ, p.b) == 0);
  REQUIRE(p.a.remote(2, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.completion().status == IBV_WC_BAD_RESP_ERR);
}

TEST_CASE("A request that fails completes although it is not signaled") {
  connected_pair p({.all_signaled = false});
  with_settings set("fail=write:1:retry");
  ibv_sge e = p.a.element(0, 8);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.wr_id = 5;
  wr.sg_list = &e;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(p.b.memory.data());
  wr.wr.rdma.rkey = p.b.mr->rkey;
  REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
  const ibv_wc wc = p.a.completion();
  CHECK(wc.wr_id == 5);
  CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("A receive fails, and its queue pair with it") {
  connected_pair p;
  with_settings set("fail=recv:2:loc_prot");
  for (std::uint64_t i = 1; i <= 3; ++i)
    REQUIRE(p.b.receive(i) == 0);
  REQUIRE(p.a.send(1) == 0);
  CHECK(p.b.completion().status == IBV_WC_SUCCESS);
  REQUIRE(p.a.send(2) == 0);
  CHECK(p.b.completion().status == IBV_WC_LOC_PROT_ERR);
  const ibv_wc flushed = p.b.completion();
  CHECK(flushed.wr_id == 3);
  CHECK(flushed.status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("Requests of a dropped link end after their timeout, on both sides") {
  connected_pair p;
  with_settings set("drop=send:2");
  for (std::uint64_t i = 1; i <= 2; ++i)
    REQUIRE(p.b.receive(i) == 0);
  REQUIRE(p.a.receive(9) == 0);
  const auto posted = clock::now();
  REQUIRE(p.a.send(1) == 0);
  REQUIRE(p.a.send(2) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.completion().status == IBV_WC_RETRY_EXC_ERR);
  CHECK(clock::now() - posted >= std::chrono::nanoseconds(2 * 4096 * 256));
  const ibv_wc flushed = p.a.completion();
  CHECK(flushed.wr_id == 9);
  CHECK(flushed.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(p.b.completion().wr_id == 1);
  CHECK(p.b.is_quiet());
  REQUIRE(p.b.send(3) == 0);
  CHECK(p.b.completion().status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("All links are dropped now, and a reset queue pair has a new one") {
  connected_pair p;
  with_settings set("drop=now");
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_RETRY_EXC_ERR);
  REQUIRE(p.a.to(IBV_QPS_RESET) == 0);
  REQUIRE(p.b.to(IBV_QPS_RESET) == 0);
  connect(p.a, p.b);
  REQUIRE(p.a.remote(2, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("A request that waits for a receive ends when the link is dropped") {
  connected_pair p;
  with_settings set("");
  REQUIRE(p.a.send(1) == 0); // receiver not ready, without limit
  set.replace("kill=now");
  CHECK(p.a.completion().status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("The second call of each function fails with the error that was set") {
  const auto context = open_soft();
  side s(*context);
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  const auto refused = [](void* made) {
    return made == nullptr ? errno : 0;
  };
  const std::map<std::string, std::function<int()>> calls{
      {"alloc_pd",
       [&] {
         return refused(owned_pd(ibv_alloc_pd(context.get())).get());
       }},
      {"reg_mr",
       [&] {
         return refused(owned_mr(ibv_reg_mr(s.pd.get(), s.memory.data(), 8, 0)).get());
       }},
      {"create_cq",
       [&] {
         return refused(owned_cq(ibv_create_cq(context.get(), 1, nullptr, nullptr, 0)).get());
       }},
      {"create_srq",
       [&] {
         ibv_srq_init_attr init{};
         init.attr.max_wr = init.attr.max_sge = 1;
         return refused(owned_srq(ibv_create_srq(s.pd.get(), &init)).get());
       }},
      {"create_qp",
       [&] {
         ibv_qp_init_attr init{};
         init.send_cq = init.recv_cq = s.cq.get();
         init.cap.max_send_wr = init.cap.max_recv_wr = 1;
         init.qp_type = IBV_QPT_RC;
         return refused(owned_qp(ibv_create_qp(s.pd.get(), &init)).get());
       }},
      {"alloc_mw",
       [&] {
         ibv_mw* const w = ibv_alloc_mw(s.pd.get(), IBV_MW_TYPE_2);
         const int error = refused(w);
         if (w != nullptr)
           ibv_dealloc_mw(w);
         return error;
       }},
      {"modify_qp",
       [&] {
         return s.to(IBV_QPS_INIT);
       }},
      {"post_recv",
       [&] {
         return s.receive(1);
       }},
  };
  for (const auto& [name, call] : calls) {
    INFO(name);
    with_settings set("fail=" + name + ":2:eagain");
    CHECK(call() == 0);
    CHECK(call() == EAGAIN);
    CHECK(call() == 0);
    CHECK(soft_get_faults() == 1);
  }
}

TEST_CASE("A refused post names its request, and posts nothing") {
  connected_pair p;
  with_settings set("fail=post_send:1:enomem,fail=post_recv:1:enomem");
  ibv_sge e = p.a.element(0, 8);
  ibv_send_wr second{}, first{}, *bad = nullptr;
  first.next = &second;
  first.opcode = second.opcode = IBV_WR_SEND;
  first.sg_list = second.sg_list = &e;
  first.num_sge = second.num_sge = 1;
  CHECK(ibv_post_send(p.a.qp.get(), &first, &bad) == ENOMEM);
  CHECK(bad == &first);
  CHECK(p.b.receive(1) == ENOMEM);
  REQUIRE(p.b.receive(2) == 0);
  REQUIRE(p.a.send(3) == 0);
  CHECK(p.b.completion().wr_id == 2);
  CHECK(p.a.completion().wr_id == 3);
}

TEST_CASE("Receives of a shared queue are refused, too") {
  connected_pair p({.shared = true});
  with_settings set("fail=post_recv:1:enomem");
  CHECK(p.b.receive(1) == ENOMEM);
  CHECK(p.b.receive(2) == 0);
}

TEST_CASE("Random faults depend on the seed alone") {
  const auto context = open_soft();
  side s(*context);
  const auto outcomes = [&](const std::string& seed) {
    with_settings set("fail=reg_mr:30%:enomem,seed=" + seed);
    std::vector<bool> refused;
    for (int i = 0; i < 200; ++i)
      refused.push_back(!owned_mr(ibv_reg_mr(s.pd.get(), s.memory.data(), 8, 0)));
    CHECK(soft_get_faults() ==
          static_cast<unsigned long>(std::count(refused.begin(), refused.end(), true)));
    return refused;
  };
  const auto first = outcomes("7");
  CHECK(first == outcomes("7"));
  CHECK(first != outcomes("8"));
  const auto n = std::count(first.begin(), first.end(), true);
  CHECK(n > 20); // with this seed; 60 are expected
  CHECK(n < 120);
}

TEST_CASE("An event of the port is raised in every context") {
  const auto one = open_soft(), other = open_soft();
  with_settings set("event=now:port_err");
  CHECK(next_event(*one) == IBV_EVENT_PORT_ERR);
  CHECK(next_event(*other) == IBV_EVENT_PORT_ERR);
}

TEST_CASE("An event of a queue pair or of its queue is raised at a request") {
  connected_pair p;
  with_settings set("event=write:2:path_mig,event=write:3:cq_err");
  for (std::uint64_t i = 1; i <= 3; ++i) {
    REQUIRE(p.a.remote(i, IBV_WR_RDMA_WRITE, p.b) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(has_event(*p.context) == (i != 1));
    if (i == 1)
      continue;
    ibv_async_event e{};
    REQUIRE(ibv_get_async_event(p.context.get(), &e) == 0);
    if (i == 2) {
      CHECK(e.event_type == IBV_EVENT_PATH_MIG);
      CHECK(e.element.qp == p.a.qp.get());
    } else {
      CHECK(e.event_type == IBV_EVENT_CQ_ERR);
      CHECK(e.element.cq == p.a.cq.get());
    }
    ibv_ack_async_event(&e);
  }
}

TEST_CASE("Settings that are wrong change nothing") {
  connected_pair p;
  with_settings set("fail=post_recv:1:enomem");
  CHECK(soft_set("fail=post_recv:1:enomen") == EINVAL);
  CHECK(p.b.receive(1) == ENOMEM);
}
