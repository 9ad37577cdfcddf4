// SPDX-License-Identifier: BSL-1.0
// The habits of the personalities, as a program meets them.
#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <tuple>
#include <utility>

using namespace soft::test;
using namespace std::chrono_literals;

namespace {

// Waits for a completion by the channel, and leaves it unpolled.
void wait_unpolled(side& s) {
  ibv_cq* q = nullptr;
  void* context = nullptr;
  REQUIRE(ibv_get_cq_event(s.channel.get(), &q, &context) == 0);
  ibv_ack_cq_events(q, 1);
}

constexpr std::array<std::byte, 8> sent{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                        std::byte{5}, std::byte{6}, std::byte{7}, std::byte{8}};
constexpr std::array<std::byte, 8> nothing{};

} // namespace

TEST_CASE("Destroying a queue pair drops its completions on adapters, and keeps them on plain") {
  for (const auto& [name, kept] :
       {std::pair("plain", true), std::pair("mlx5", false), std::pair("bnxt_re", false)}) {
    INFO(name);
    with_settings set{std::string(name)};
    connected_pair p({.shared = true});
    for (std::uint64_t i = 1; i <= 3; ++i)
      REQUIRE(p.b.receive(i) == 0);
    REQUIRE(p.a.send(1) == 0);
    REQUIRE(p.a.send(2) == 0);
    // The sender's completions come after the receiver's.
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
    p.b.qp.reset();
    if (kept) {
      CHECK(p.b.completion().wr_id == 1);
      CHECK(p.b.completion().wr_id == 2);
    }
    CHECK(p.b.is_quiet()); // the receives 1 and 2 of the shared queue are never reported
  }
}

TEST_CASE("IBV_EVENT_QP_LAST_WQE_REACHED comes late") {
  with_settings set("mlx5");
  connected_pair p({.shared = true});
  const auto failed = clock::now();
  REQUIRE(p.b.to(IBV_QPS_ERR) == 0);
  ibv_async_event e{};
  REQUIRE(ibv_get_async_event(p.context.get(), &e) == 0);
  CHECK(clock::now() - failed >= 23ms);
  CHECK(e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(e.element.qp == p.b.qp.get());
  ibv_ack_async_event(&e);
}

TEST_CASE("A queue pair that is destroyed before its late event never has the event") {
  with_settings set("mlx5,late_last_wqe=3600s");
  connected_pair p({.shared = true});
  REQUIRE(p.b.to(IBV_QPS_ERR) == 0);
  REQUIRE(p.b.send(1) == 0);
  CHECK(p.b.completion().status == IBV_WC_WR_FLUSH_ERR);
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(p.b.qp.get(), &a, IBV_QP_STATE, &init) == 0); // after the flush
  CHECK_FALSE(has_event(*p.context));
  p.b.qp.reset();
  CHECK_FALSE(has_event(*p.context));
}

TEST_CASE("irdma reports neither the address vector of a queue pair nor its timeout") {
  for (const bool told : {false, true}) {
    INFO(told);
    with_settings set(told ? "irdma,untold_route=0" : "irdma");
    connected_pair p;
    ibv_qp_attr a{};
    ibv_qp_init_attr init{};
    REQUIRE(ibv_query_qp(p.a.qp.get(), &a, IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init) ==
            0);
    CHECK((a.ah_attr.is_global == 1) == told);
    CHECK((a.timeout != 0) == told);
    CHECK(a.retry_cnt != 0);
    REQUIRE(p.b.receive(1) == 0);
    CHECK(p.a.send(1) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("A queue pair that fails has taken shared receives, which it flushes late") {
  for (const bool silent : {false, true}) {
    INFO(silent);
    with_settings set("mlx5,taken_receives=2,late_last_wqe=1ms,no_last_wqe=" +
                      std::to_string(int(silent)));
    connected_pair p({.shared = true});
    for (std::uint64_t i = 1; i <= 3; ++i)
      REQUIRE(p.b.receive(i) == 0);
    REQUIRE(p.b.to(IBV_QPS_ERR) == 0);
    for (std::uint64_t i = 1; i <= 2; ++i) {
      const ibv_wc wc = p.b.completion();
      CHECK(wc.wr_id == i);
      CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
      CHECK(wc.qp_num == p.b.qp->qp_num);
    }
    if (!silent)
      CHECK(next_event(*p.context) == IBV_EVENT_QP_LAST_WQE_REACHED);
    p.b.qp.reset();
    CHECK_FALSE(has_event(*p.context));
    CHECK(p.b.is_quiet());
  }
}

TEST_CASE("bnxt_re and irdma raise an event about a failed request, which may complete later") {
  for (const std::string kind : {"bnxt_re", "irdma"}) {
    INFO(kind);
    with_settings set(kind + ",late_failure=10ms,fail=send:1:retry");
    connected_pair p;
    const auto begun = clock::now();
    REQUIRE(p.a.send(1) == 0);
    CHECK(next_event(*p.context) ==
          (kind == "irdma" ? IBV_EVENT_QP_FATAL : IBV_EVENT_QP_ACCESS_ERR));
    const ibv_wc wc = p.a.completion();
    CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
    CHECK(wc.wr_id == 1);
    CHECK(clock::now() - begun >= 10ms);
    REQUIRE(p.a.send(2) == 0);
    CHECK(p.a.completion().status == IBV_WC_WR_FLUSH_ERR);
    CHECK_FALSE(has_event(*p.context));
  }
}

TEST_CASE("bnxt_re reports the last receive of a queue pair only if no request was in error") {
  for (const bool in_error : {false, true}) {
    INFO(in_error);
    with_settings set(in_error ? "bnxt_re,taken_receives=1,fail=send:1:retry"
                               : "bnxt_re,taken_receives=1");
    connected_pair p({.shared = true});
    REQUIRE(p.b.receive(1) == 0);
    if (in_error) {
      REQUIRE(p.b.send(2) == 0);
      CHECK(p.b.completion().status == IBV_WC_RETRY_EXC_ERR);
    } else {
      REQUIRE(p.b.to(IBV_QPS_ERR) == 0);
    }
    CHECK(p.b.completion().wr_id == 1); // flushed in any case
    CHECK(next_event(*p.context) ==
          (in_error ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_LAST_WQE_REACHED));
    p.b.qp.reset();
    CHECK_FALSE(has_event(*p.context));
  }
}

TEST_CASE("Shared receives that a destroyed queue pair has taken are lost on adapters only") {
  for (const bool kept : {false, true}) {
    INFO(kept);
    with_settings set(std::string(kept ? "plain" : "mlx5") +
                      ",taken_receives=1,late_last_wqe=3600s");
    for (const bool fails : {false, true}) {
      connected_pair p({.shared = true});
      REQUIRE(p.b.receive(1) == 0);
      if (fails)
        REQUIRE(p.b.to(IBV_QPS_ERR) == 0);
      p.b.qp.reset();
      if (kept)
        CHECK(p.b.completion().wr_id == 1);
      CHECK(p.b.is_quiet());
    }
  }
}

TEST_CASE("mlx5 copies a small message to its receive when the completion is polled") {
  for (const bool copies : {false, true}) {
    with_settings set(copies ? "mlx5" : "plain");
    connected_pair p;
    std::copy(sent.begin(), sent.end(), p.a.memory.begin());
    REQUIRE(p.b.receive(1) == 0);
    REQUIRE(p.a.send(2) == 0);
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(p.b.bytes_at(0) == (copies ? nothing : sent));
    CHECK(p.b.completion().wr_id == 1);
    CHECK(p.b.bytes_at(0) == sent);
  }
}

TEST_CASE("A message of more than 32 bytes goes to its receive at once") {
  with_settings set("mlx5");
  connected_pair p;
  std::copy(sent.begin(), sent.end(), p.a.memory.begin());
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.a.send(2, 0, 33) == 0);
  REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.b.bytes_at(0) == sent);
}

TEST_CASE("mlx5 copies the answer to a small READ when the completion is polled") {
  with_settings set("mlx5");
  connected_pair p;
  std::copy(sent.begin(), sent.end(), p.b.memory.begin());
  REQUIRE(ibv_req_notify_cq(p.a.cq.get(), 0) == 0);
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_READ, p.b) == 0);
  wait_unpolled(p.a);
  CHECK(p.a.bytes_at(0) == nothing);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.bytes_at(0) == sent);
}

TEST_CASE("Copies keep to their completions when the queue is resized or a queue pair destroyed") {
  with_settings set("mlx5");
  connected_pair p;
  std::copy(sent.begin(), sent.end(), p.a.memory.begin());
  REQUIRE(p.b.receive(1, 0) == 0);
  REQUIRE(p.b.receive(2, 64) == 0);
  REQUIRE(p.a.send(1) == 0);
  REQUIRE(p.a.send(2) == 0);
  REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  REQUIRE(ibv_resize_cq(p.b.cq.get(), 2 * side::depth) == 0);
  CHECK(p.b.completion().wr_id == 1);
  CHECK(p.b.bytes_at(0) == sent);
  CHECK(p.b.bytes_at(64) == nothing);
  CHECK(p.b.completion().wr_id == 2);
  CHECK(p.b.bytes_at(64) == sent);
}

TEST_CASE("After the device is removed its functions fail with EIO, and requests stay for ever") {
  with_settings set("irdma");
  auto p = std::make_unique<connected_pair>();
  set.replace("irdma,event=now:device_fatal");
  CHECK(next_event(*p->context) == IBV_EVENT_DEVICE_FATAL);
  CHECK(p->a.remote(1, IBV_WR_RDMA_WRITE, p->b) == 0);
  CHECK(p->a.to(IBV_QPS_ERR) == EIO);
  CHECK(ibv_alloc_pd(p->context.get()) == nullptr);
  CHECK(errno == EIO);
  errno = 0;
  CHECK(ibv_create_comp_channel(p->context.get()) == nullptr);
  CHECK(errno == EIO);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr made{};
  CHECK(ibv_query_qp(p->a.qp.get(), &attributes, IBV_QP_STATE, &made) == EIO);
  CHECK(ibv_resize_cq(p->a.cq.get(), 1) == EIO);
  CHECK(ibv_destroy_qp(p->a.qp.get()) == EIO);
  CHECK(ibv_dereg_mr(p->a.mr.get()) == EIO);
  CHECK(p->a.is_quiet());
  CHECK(ibv_destroy_qp(p->a.qp.get()) == EIO); // lost once
  CHECK(ibv_destroy_cq(p->a.cq.get()) == EIO); // a queue pair uses it
  CHECK(ibv_dealloc_pd(p->a.pd.get()) == EIO);
  soft_resources lost{}, not_lost{};
  soft_get_lost_resources(&lost);
  CHECK(lost.queue_pairs == 1);
  CHECK(lost.regions == 1);
  CHECK(lost.completion_queues == 1);
  CHECK(lost.domains == 1);
  setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
  soft_resources before{}, after{};
  soft_get_resources(&before);
  p.reset(); // destroys all
  soft_get_lost_resources(&not_lost);
  CHECK(not_lost.queue_pairs + not_lost.regions + not_lost.completion_queues + not_lost.domains ==
        0);
  unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY");
  soft_get_resources(&after);
  CHECK(after.queue_pairs == before.queue_pairs - 2);
  CHECK(after.regions == before.regions - 2);
  set.replace("irdma");
  connected_pair next; // another context has the device
  REQUIRE(next.a.remote(1, IBV_WR_RDMA_WRITE, next.b) == 0);
  CHECK(next.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("Before the event of its removal a device's functions fail, and it uses the memory") {
  with_settings set("mlx5");
  const auto context = open_soft();
  side a(*context), b(*context);
  connect(a, b);
  set.replace("mlx5,removal=10s,event=now:device_fatal");
  CHECK(ibv_dereg_mr(a.mr.get()) == EIO);
  pollfd events{context->async_fd, POLLIN, 0};
  CHECK(poll(&events, 1, 0) == 0);
  pollfd ended{a.channel->fd, POLLIN, 0};
  CHECK(poll(&ended, 1, 0) == 0);
  set.replace("mlx5,event=now:device_fatal");
  CHECK(next_event(*context) == IBV_EVENT_DEVICE_FATAL);
  CHECK(poll(&ended, 1, 0) == 1);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  CHECK(ibv_get_cq_event(a.channel.get(), &cq, &user) == -1);
  CHECK(errno == EIO);
  const auto anew = open_soft();
  CHECK_FALSE(has_event(*anew));
  connected_pair p;
  CHECK(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
  for (side* s : {&a, &b}) {
    s->qp.reset();
    s->mr.reset();
    s->cq.reset();
    s->pd.reset();
  }
  unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY");
}

TEST_CASE("A context that is opened during the removal of a device gets no event of the removal") {
  with_settings set("mlx5");
  const auto removed = open_soft();
  set.replace("mlx5,removal=20ms,event=now:device_fatal");
  connected_pair p;
  CHECK(next_event(*removed) == IBV_EVENT_DEVICE_FATAL);
  CHECK_FALSE(has_event(*p.context));
  CHECK(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("A removed device costs no descriptor once its context is closed") {
  with_settings set("mlx5");
  static auto& lost = *new std::vector<ibv_pd*>; // as they cannot be destroyed
  const auto remove = [&set] {
    set.replace("mlx5");
    const auto context = open_soft();
    lost.push_back(ibv_alloc_pd(context.get()));
    REQUIRE(lost.back() != nullptr);
    rdma_cm_id* id = nullptr;
    REQUIRE(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in a = local_address(0);
    REQUIRE(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&a)) == 0);
    set.replace("mlx5,event=now:device_fatal");
    rdma_destroy_id(id);
  };
  remove(); // the process has some for itself
  const std::size_t before = open_descriptors();
  for (int n = 0; n < 3; ++n)
    remove();
  CHECK(open_descriptors() == before);
}

TEST_CASE("The plain device is not removed by its event") {
  const auto context = open_soft();
  with_settings set("event=now:device_fatal");
  CHECK(next_event(*context) == IBV_EVENT_DEVICE_FATAL);
  CHECK(owned_pd(ibv_alloc_pd(context.get())));
}

TEST_CASE("Creating, destroying and registering take their time") {
  const auto context = open_soft();
  with_settings set("mlx5,create=4ms,destroy=6ms");
  auto called = clock::now();
  owned_pd pd(ibv_alloc_pd(context.get()));
  CHECK(clock::now() - called >= 4ms);
  std::vector<std::byte> memory(4096);
  called = clock::now();
  owned_mr mr(ibv_reg_mr(pd.get(), memory.data(), memory.size(), 0));
  CHECK(clock::now() - called >= 16us);
  called = clock::now();
  mr.reset();
  CHECK(clock::now() - called >= 6ms);
  called = clock::now();
  pd.reset();
  CHECK(clock::now() - called >= 6ms);
}

TEST_CASE("The mlx5 personality has a latency") {
  with_settings set("mlx5");
  connected_pair p;
  const auto posted = clock::now();
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(clock::now() - posted >= 800ns);
}
