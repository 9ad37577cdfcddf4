// SPDX-License-Identifier: BSL-1.0
// ibv_create_cq_ex(3): the fields of a completion, and attributes that are refused.
#include "built_requests.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cerrno>
#include <future>

using namespace soft::test;

namespace {

ibv_cq_ex* make_cq(ibv_context& c, std::uint64_t readable, std::uint32_t mask = 0,
                   std::uint32_t flags = 0) {
  ibv_cq_init_attr_ex init{};
  init.cqe = 16;
  init.wc_flags = readable;
  init.comp_mask = mask;
  init.flags = flags;
  errno = 0;
  return ibv_create_cq_ex(&c, &init);
}
int result(ibv_cq_ex* made) {
  if (made == nullptr)
    return errno;
  return ibv_destroy_cq(ibv_cq_ex_to_cq(made));
}

// Replaces the queue pair by one whose receives complete in `q`, and connects it to `peer`.
void receive_in(side& s, ibv_cq_ex* q, side& peer) {
  ibv_qp_init_attr init{};
  init.send_cq = s.cq.get();
  init.recv_cq = ibv_cq_ex_to_cq(q);
  init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_recv_sge = 4;
  init.qp_type = IBV_QPT_RC;
  s.qp.reset(ibv_create_qp(s.pd.get(), &init));
  REQUIRE(s.qp);
  REQUIRE(peer.to(IBV_QPS_RESET) == 0);
  connect(peer, s);
}

} // namespace

TEST_CASE("A completion's fields are read") {
  connected_pair p({.operations = all_operations});
  ibv_cq_ex* const q = make_cq(*p.context, IBV_WC_STANDARD_FLAGS);
  REQUIRE(q != nullptr);
  {
    side s(*p.context);
    ibv_poll_cq_attr how{};
    CHECK(ibv_start_poll(q, &how) == ENOENT);
    how.comp_mask = 1;
    CHECK(ibv_start_poll(q, &how) == EINVAL);
    how.comp_mask = 0;
    receive_in(s, q, p.a);
    for (std::uint64_t i = 1; i <= 3; ++i)
      REQUIRE(s.receive(i, 64 * i) == 0);
    ibv_mw* const w = ibv_alloc_mw(s.pd.get(), IBV_MW_TYPE_2);
    REQUIRE(w != nullptr);
    const std::uint32_t key = ibv_inc_rkey(w->rkey);
    ibv_send_wr bind{}, *bad = nullptr;
    bind.opcode = IBV_WR_BIND_MW;
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_mw = {w, key, {s.mr.get(), s.element(0, 0).addr, 8, IBV_ACCESS_REMOTE_WRITE}};
    REQUIRE(ibv_post_send(s.qp.get(), &bind, &bad) == 0);
    REQUIRE(s.completion().status == IBV_WC_SUCCESS);
    REQUIRE(post(p.a, 1, [&](ibv_qp_ex* b) {
              ibv_wr_send_imm(b, htonl(42));
              set_element(p.a);
              ibv_wr_rdma_write_imm(b, s.mr->rkey, s.element(0, 0).addr, htonl(43));
              set_element(p.a, 0, 5);
              ibv_wr_send_inv(b, key);
              set_element(p.a, 0, 6);
            }) == 0);
    for (int i = 0; i < 3; ++i)
      REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
    REQUIRE(ibv_start_poll(q, &how) == 0);
    CHECK(q->wr_id == 1);
    CHECK(q->status == IBV_WC_SUCCESS);
    CHECK(ibv_wc_read_opcode(q) == IBV_WC_RECV);
    CHECK(ibv_wc_read_byte_len(q) == 8);
    CHECK(ibv_wc_read_wc_flags(q) == IBV_WC_WITH_IMM);
    CHECK(ntohl(ibv_wc_read_imm_data(q)) == 42);
    CHECK(ibv_wc_read_qp_num(q) == s.qp->qp_num);
    CHECK(ibv_wc_read_vendor_err(q) == 0);
    CHECK(ibv_wc_read_src_qp(q) == p.a.qp->qp_num);
    CHECK(ibv_wc_read_slid(q) == 0);
    CHECK(ibv_wc_read_sl(q) == 0);
    CHECK(ibv_wc_read_dlid_path_bits(q) == 0);
    REQUIRE(ibv_next_poll(q) == 0);
    CHECK(q->wr_id == 2);
    CHECK(ibv_wc_read_opcode(q) == IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(ibv_wc_read_byte_len(q) == 5);
    CHECK(ntohl(ibv_wc_read_imm_data(q)) == 43);
    ibv_end_poll(q);
    // The completions that were not read remain.
    REQUIRE(ibv_start_poll(q, &how) == 0);
    CHECK(q->wr_id == 3);
    CHECK(ibv_wc_read_wc_flags(q) == IBV_WC_WITH_INV);
    CHECK(ibv_wc_read_invalidated_rkey(q) == key);
    CHECK(ibv_next_poll(q) == ENOENT);
    ibv_end_poll(q);
    CHECK(ibv_start_poll(q, &how) == ENOENT);
    CHECK(ibv_dealloc_mw(w) == 0);
    // A completion with an error, and both ways of polling one queue.
    REQUIRE(s.receive(4) == 0);
    REQUIRE(s.receive(5) == 0);
    REQUIRE(s.to(IBV_QPS_ERR) == 0);
    while (ibv_start_poll(q, &how) == ENOENT)
      continue;
    CHECK(q->wr_id == 4);
    CHECK(q->status == IBV_WC_WR_FLUSH_ERR);
    ibv_end_poll(q);
    ibv_wc wc{};
    while (ibv_poll_cq(ibv_cq_ex_to_cq(q), 1, &wc) == 0)
      continue;
    CHECK(wc.wr_id == 5);
  }
  CHECK(result(q) == 0);
}

TEST_CASE("Completions are dropped and a queue is resized while a thread polls by ibv_start_poll") {
  connected_pair p;
  ibv_cq_ex* const q = make_cq(*p.context, IBV_WC_STANDARD_FLAGS);
  REQUIRE(q != nullptr);
  const owned_cq owned(ibv_cq_ex_to_cq(q));
  side s(*p.context);
  receive_in(s, q, p.a);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    REQUIRE(s.receive(i) == 0);
    REQUIRE(p.a.send(i) == 0);
  }
  for (int i = 0; i < 3; ++i) // they come after the receiver's
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  ibv_poll_cq_attr how{};
  REQUIRE(ibv_start_poll(q, &how) == 0);
  REQUIRE(ibv_next_poll(q) == 0);
  auto other = std::async(std::launch::async, [&] {
    const int resized = ibv_resize_cq(owned.get(), 32);
    return resized != 0 ? resized : s.to(IBV_QPS_RESET);
  });
  const bool ends = other.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  CHECK(ends);
  if (ends) {
    CHECK(state_of(*p.a.qp) == IBV_QPS_RTS); // by the lock of the device
    CHECK(q->wr_id == 2);
    CHECK(ibv_wc_read_byte_len(q) == 8);
    CHECK(ibv_next_poll(q) == ENOENT);
  }
  ibv_end_poll(q);
  CHECK(other.get() == 0);
  CHECK(q->cqe == 32);
}

TEST_CASE("Completion queues with fields that the device does not have are refused") {
  const auto context = open_soft();
  for (int bit = 0; bit < 64; ++bit) {
    INFO("bit " << bit);
    const std::uint64_t field = std::uint64_t(1) << bit;
    CHECK(result(make_cq(*context, field)) ==
          ((field & IBV_WC_STANDARD_FLAGS) != 0 ? 0 : EOPNOTSUPP));
  }
  const auto with_flags = [&](std::uint32_t flags) {
    return result(make_cq(*context, 0, IBV_CQ_INIT_ATTR_MASK_FLAGS, flags));
  };
  CHECK(with_flags(IBV_CREATE_CQ_ATTR_SINGLE_THREADED) == 0);
  CHECK(with_flags(IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) == 0);
  CHECK(with_flags(1u << 9) == EOPNOTSUPP);
  CHECK(result(make_cq(*context, 0, IBV_CQ_INIT_ATTR_MASK_PD)) == EOPNOTSUPP);
  CHECK(result(make_cq(*context, 0, 0, 1u << 9)) == 0); // without its bit in the mask
  with_settings set("fail=create_cq:1:enospc");
  CHECK(result(make_cq(*context, 0)) == ENOSPC);
}
