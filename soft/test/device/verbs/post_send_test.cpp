// SPDX-License-Identifier: BSL-1.0
// ibv_post_send(3) with a request that cannot be posted.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <utility>

using namespace soft::test;

TEST_CASE("A READ with inline data is refused") {
  connected_pair p({.inline_bytes = 64});
  ibv_sge e = p.a.element(0, 8);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &e;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = p.b.element(0, 0).addr;
  wr.wr.rdma.rkey = p.b.mr->rkey;
  CHECK(ibv_post_send(p.a.qp.get(), &wr, &bad) == EINVAL);
  CHECK(bad == &wr);
  check_clean(p.a, p.b, 1);
}

TEST_CASE("ibv_post_send posts the requests before a wrong one") {
  connected_pair p;
  ibv_sge e[] = {p.a.element(0, 8), p.a.element(8, 8)};
  ibv_send_wr wr[4] = {}, *bad = nullptr;
  for (std::size_t i = 0; i < 4; ++i) {
    wr[i].wr_id = i;
    wr[i].next = i < 3 ? &wr[i + 1] : nullptr;
    wr[i].sg_list = e;
    wr[i].num_sge = i == 2 ? 2 : 1;
    wr[i].opcode = IBV_WR_RDMA_WRITE;
    wr[i].wr.rdma.remote_addr = p.b.element(0, 0).addr;
    wr[i].wr.rdma.rkey = p.b.mr->rkey;
  }
  CHECK(ibv_post_send(p.a.qp.get(), wr, &bad) == EINVAL);
  CHECK(bad == &wr[2]);
  wr[2].num_sge = -1;
  CHECK(ibv_post_send(p.a.qp.get(), &wr[2], &bad) == EINVAL);
  CHECK(p.a.completion().wr_id == 0);
  CHECK(p.a.completion().wr_id == 1);
  check_clean(p.a, p.b, 7);
}

TEST_CASE("A device whose provider knows no windows refuses to invalidate") {
  for (const auto& [name, result] : {std::pair("plain", 0), std::pair("irdma", 0),
                                     std::pair("bnxt_re", EINVAL), std::pair("erdma", EINVAL)}) {
    INFO(name);
    with_settings set(name);
    connected_pair p;
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = p.a.mr->rkey;
    CHECK(ibv_post_send(p.a.qp.get(), &wr, &bad) == result);
    if (result == 0) // a region is no window
      CHECK(p.a.completion().status == IBV_WC_LOC_QP_OP_ERR);
    else
      CHECK(bad == &wr);
  }
}
