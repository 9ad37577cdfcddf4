// SPDX-License-Identifier: BSL-1.0
// The engine's turns: which requests share one, and when events of completion queues are raised.
#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

using namespace soft::test;

namespace {

/// Registered memory of a side for longer requests.
struct long_memory {
  long_memory(side& s, std::size_t size)
      : bytes(size),
        mr(ibv_reg_mr(s.pd.get(), bytes.data(), size,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) {
    REQUIRE(mr);
  }
  std::vector<std::byte> bytes;
  owned_mr mr;
};

/// Posts a chain of signaled requests from `a`, each of all bytes, at once.
void post_chain(side& a, ibv_wr_opcode opcode, unsigned count, const long_memory& here,
                const long_memory& there) {
  ibv_sge e{reinterpret_cast<std::uintptr_t>(here.bytes.data()),
            static_cast<std::uint32_t>(here.bytes.size()), here.mr->lkey};
  std::vector<ibv_send_wr> chain(count);
  for (unsigned i = 0; i < count; ++i) {
    chain[i] = side::request(i, opcode, e);
    chain[i].next = i + 1 < count ? &chain[i + 1] : nullptr;
    chain[i].wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(there.bytes.data());
    chain[i].wr.rdma.rkey = there.mr->rkey;
  }
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(a.qp.get(), chain.data(), &bad) == 0);
}

} // namespace

// One completion queue has the order of both. The latency keeps the engine from copying until both
// are posted. A thread that is not run between the posts misses the READs, so one round decides
// nothing.
TEST_CASE("A request waits for few long requests of another queue pair") {
  with_settings set("latency=2ms");
  connected_pair p;
  side from(*p.context), to(*p.context);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = p.a.cq.get();
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  init.cap = {1, 1, 1, 1, 0};
  from.qp.reset(ibv_create_qp(from.pd.get(), &init));
  REQUIRE(from.qp);
  connect(from, to);
  constexpr unsigned reads = 60;
  constexpr std::uint64_t write = 1000;
  const long_memory here(p.a, 1 << 18), there(p.b, 1 << 18);
  unsigned fewest = reads;
  for (int round = 0; round < 100 && fewest > reads / 2; ++round) {
    post_chain(p.a, IBV_WR_RDMA_READ, reads, here, there);
    REQUIRE(from.remote(write, IBV_WR_RDMA_WRITE, to) == 0);
    for (unsigned i = 0; i <= reads; ++i) {
      const ibv_wc wc = p.a.completion();
      CHECK(wc.status == IBV_WC_SUCCESS);
      if (wc.wr_id == write)
        fewest = std::min(fewest, i);
    }
  }
  CHECK(fewest <= reads / 2);
}

TEST_CASE("An event is raised behind the requests that are ready, and before a long one") {
  connected_pair p;
  constexpr unsigned writes = 60;
  const long_memory here(p.a, 65'000), there(p.b, 65'000); // not long
  const long_memory long_here(p.a, 1 << 24), long_there(p.b, 1 << 24);
  const auto await_event = [&] {
    ibv_cq* cq = nullptr;
    void* user = nullptr;
    REQUIRE(ibv_get_cq_event(p.a.channel.get(), &cq, &user) == 0);
    ibv_ack_cq_events(cq, 1);
  };
  std::vector<ibv_wc> done(writes);
  for (int round = 0; round < 20; ++round) {
    REQUIRE(ibv_req_notify_cq(p.a.cq.get(), 0) == 0);
    post_chain(p.a, IBV_WR_RDMA_WRITE, writes, here, there);
    await_event();
    CHECK(ibv_poll_cq(p.a.cq.get(), static_cast<int>(writes), done.data()) == int(writes));
  }
  bool is_before = false; // not if this thread is not run until the READ has ended
  for (int round = 0; round < 100 && !is_before; ++round) {
    REQUIRE(ibv_req_notify_cq(p.a.cq.get(), 0) == 0);
    REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
    post_chain(p.a, IBV_WR_RDMA_READ, 1, long_here, long_there);
    await_event();
    is_before = p.a.completion().wr_id == 1 && p.a.is_quiet();
    if (is_before)
      CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  }
  CHECK(is_before);
}
