// SPDX-License-Identifier: BSL-1.0
// Faults of registrations and creations.
#include "faults.hpp"
#include "loopback.hpp"

#include "catch.hpp"

#include <cerrno>

using faults::call;
using faults::injector;

TEST_CASE("registrations and creations fail with the chosen error at the chosen call") {
  cm_device device;
  ibv_context* const context = device.context();
  injector inj(context);
  ibv_pd* pd = ibv_alloc_pd(context);
  REQUIRE(pd);
  char memory[64];

  SECTION("protection domain") {
    inj.fail(call::alloc_pd, EDQUOT);
    errno = 0;
    REQUIRE_FALSE(ibv_alloc_pd(context));
    REQUIRE(errno == EDQUOT);
  }
  SECTION("memory region, through each function") {
    inj.fail(call::reg_mr, ENOMEM, {.first = 2, .times = 3});
    ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, local_write);
    REQUIRE(mr);
    errno = 0;
    REQUIRE_FALSE(ibv_reg_mr(pd, memory, sizeof memory, local_write));
    REQUIRE(errno == ENOMEM);
    unsigned access = IBV_ACCESS_LOCAL_WRITE;
    asm volatile("" : "+r"(access)); // not a constant: libibverbs treats constants differently
    REQUIRE_FALSE(ibv_reg_mr(pd, memory, sizeof memory, access));
    REQUIRE_FALSE(ibv_reg_mr_iova(pd, memory, sizeof memory, 0, access));
    REQUIRE(ibv_dereg_mr(mr) == 0);
    REQUIRE(inj.counts()[call::reg_mr] == 4);
    REQUIRE(inj.counts().refused_of(call::reg_mr) == 3);
  }
  SECTION("channel and completion queue") {
    inj.fail(call::create_comp_channel, EMFILE);
    errno = 0;
    REQUIRE_FALSE(ibv_create_comp_channel(context));
    REQUIRE(errno == EMFILE);
    inj.fail(call::create_cq, EINVAL);
    errno = 0;
    REQUIRE_FALSE(ibv_create_cq(context, 4, nullptr, nullptr, 0));
    REQUIRE(errno == EINVAL);
    inj.fail(call::create_cq, ENOMEM);
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 4;
    errno = 0;
    REQUIRE_FALSE(ibv_create_cq_ex(context, &attr));
    REQUIRE(
        (errno == ENOMEM || errno == EOPNOTSUPP)); // siw of older rdma-core has no such function
  }
  SECTION("shared receive queue") {
    ibv_srq_init_attr attr{};
    attr.attr = {16, 1, 0};
    inj.fail(call::create_srq, ENOMEM);
    errno = 0;
    REQUIRE_FALSE(ibv_create_srq(pd, &attr));
    REQUIRE(errno == ENOMEM);
    ibv_srq* srq = ibv_create_srq(pd, &attr);
    REQUIRE(srq);
    inj.refuse_post(call::post_srq_recv);
    ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, local_write);
    REQUIRE(mr);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory), sizeof memory, mr->lkey};
    ibv_recv_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == ENOMEM);
    REQUIRE(bad == &wr);
    REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_dereg_mr(mr) == 0);
  }
  SECTION("a call of rdma_cm") {
    inj.fail(call::create_qp, ENOSPC);
    errno = 0;
    try {
      loopback pair(context);
      FAIL("connected");
    } catch (const std::system_error& e) {
      REQUIRE(e.code().value() == ENOSPC);
    }
    inj.fail_modify_qp(IBV_QPS_INIT, EPERM);
    try {
      loopback pair(context);
      FAIL("connected");
    } catch (const std::system_error& e) {
      REQUIRE(e.code().value() == EPERM);
    }
  }
  SECTION("memory window") {
    if (context->ops.alloc_mw) {
      inj.fail(call::alloc_mw, ENOMEM);
      errno = 0;
      REQUIRE_FALSE(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
      REQUIRE(errno == ENOMEM);
    }
  }
  REQUIRE(ibv_dealloc_pd(pd) == 0);
}
