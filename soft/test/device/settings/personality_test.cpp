// SPDX-License-Identifier: BSL-1.0
// The limits and habits of the personalities, as a program meets them.
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
  const expected table[] = {{"plain", 32, 32, 512, 32, 128, 1u << 31},
                            {"mlx5", 30, 32, 828, 30, 16, 1u << 30},
                            {"irdma", 6, 6, 101, 6, 8, (1u << 31) - 1},
                            {"bnxt_re", 6, 6, 96, 6, 126, 1u << 30},
                            {"erdma", 6, 1, 96, 1, 128, 1u << 31}};
  for (const expected& e : table) {
    INFO(e.name);
    with_settings set(e.name);
    const auto context = open_soft();
    side s(*context);
    const ibv_device_attr a = attributes(*context);
    CHECK(a.max_sge == e.reported);
    CHECK(a.max_qp_rd_atom == e.reads);
    CHECK(port(*context).max_msg_sz == e.message);
    CHECK(make(s, IBV_QPT_RC, e.send, e.receive, e.inline_bytes) == 0);
    CHECK(make(s, IBV_QPT_RC, e.send + 1, 1, 0) == EINVAL);
    CHECK(make(s, IBV_QPT_RC, 1, e.receive + 1, 0) == EINVAL);
    CHECK(make(s, IBV_QPT_RC, 1, 1, e.inline_bytes + 1) == EINVAL);
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

TEST_CASE("A port that requires a global route always reports it") {
  for (const auto& [text, required] :
       {std::pair("mlx5", true), std::pair("mlx5,grh_required=0", false)}) {
    with_settings set{std::string(text)};
    const auto context = open_soft();
    CHECK(((port(*context).flags & IBV_QPF_GRH_REQUIRED) != 0) == required);
  }
}

TEST_CASE("The mlx5 personality has a latency") {
  with_settings set("mlx5");
  connected_pair p;
  const auto posted = clock::now();
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(clock::now() - posted >= 800ns);
}
