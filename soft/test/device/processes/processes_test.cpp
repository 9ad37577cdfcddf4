// SPDX-License-Identifier: BSL-1.0
// Settings by the environment, and faults between two processes.
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <rdma/rdma_verbs.h>

using namespace soft::test;

namespace {

constexpr int messages = 8;

// The part of the other process: the hidden test cases below.
struct connecting {
  endpoint e;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  owned_mr mr;

  void prepare() {
    mr.reset(ibv_reg_mr(e.id->pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    REQUIRE(mr);
  }
  ~connecting() { mr.reset(); } // before the domain
  int send() {
    return rdma_post_send(e.id, nullptr, memory.data(), 16, mr.get(), IBV_SEND_SIGNALED);
  }
  void receive() { REQUIRE(rdma_post_recv(e.id, nullptr, memory.data(), 64, mr.get()) == 0); }
};

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  REQUIRE(value != nullptr);
  return value;
}

// Connects to the port in PORT, and waits until the other side has accepted.
void to_parent(connecting& c) {
  resolve(c.e, variable("PORT"));
  c.prepare();
  c.receive();
  REQUIRE(connect(c.e) == 0);
  REQUIRE(completion(c.e.id->recv_cq).status == IBV_WC_SUCCESS);
}

// The listening side: a connection from the test case `name` of another process, with as many
// receives as there are messages.
struct listening {
  explicit listening(const std::string& name, const std::string& settings) {
    const auto [id, port] = listen();
    listener.id = id;
    other.emplace(name, child::variables{{"PORT", port}, {"ASIO_RDMA_SOFT", settings}});
    REQUIRE(rdma_get_request(listener.id, &accepted.e.id) == 0);
    accepted.e.make_queue_pair();
    accepted.prepare();
    for (int i = 0; i < messages; ++i)
      accepted.receive();
    REQUIRE(accept(accepted.e) == 0);
    REQUIRE(accepted.send() == 0);
    REQUIRE(completion(accepted.e.id->send_cq).status == IBV_WC_SUCCESS);
  }
  endpoint listener;
  connecting accepted;
  std::optional<child> other;
};

} // namespace

TEST_CASE("child: the device does not open", "[.child]") {
  for (int i = 0; i < 2; ++i) {
    errno = 0;
    CHECK_FALSE(open_soft());
    CHECK(errno == EINVAL);
    rdma_cm_id* id = nullptr;
    CHECK(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == -1);
    CHECK(errno == EINVAL);
  }
}

TEST_CASE("With settings that are wrong the device does not open, and says why once") {
  child other("child: the device does not open", {{"ASIO_RDMA_SOFT", "seed=7,latncy=1us"}});
  std::string said;
  CHECK(other.wait(&said) == 0);
  INFO(said);
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
  CHECK(said.find("ASIO_RDMA_SOFT") != std::string::npos);
  CHECK(said.find("latncy=1us") != std::string::npos);
}

TEST_CASE("child: the settings of the environment are in force", "[.child]") {
  const auto context = open_soft();
  REQUIRE(context);
  CHECK(attributes(*context).max_sge == 1);
  CHECK(ibv_alloc_pd(context.get()) == nullptr);
  CHECK(errno == ENOSPC);
  REQUIRE(soft_set("") == 0);
  CHECK(attributes(*context).max_sge == 32);
  REQUIRE(soft_set(nullptr) == 0);
  CHECK(attributes(*context).max_sge == 1);
}

TEST_CASE("The environment's settings are in force from the first use of the device") {
  child other("child: the settings of the environment are in force",
              {{"ASIO_RDMA_SOFT", "erdma,fail=alloc_pd:1:enospc"}});
  std::string said;
  CHECK(other.wait(&said) == 0);
  CHECK(said == "");
}

TEST_CASE("child: the third request kills the connection", "[.child]") {
  connecting c;
  to_parent(c);
  for (int i = 0; i < messages; ++i)
    (void)c.send(); // fails once the queue pair has
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_WR_FLUSH_ERR);
  CHECK(soft_get_faults() == 1);
}

TEST_CASE("A peer in another process that is killed ends the connection") {
  listening l("child: the third request kills the connection", "kill=send:3");
  int received = 0;
  ibv_wc wc = completion(l.accepted.e.id->recv_cq);
  for (; wc.status == IBV_WC_SUCCESS; ++received)
    wc = completion(l.accepted.e.id->recv_cq);
  CHECK(received <= 2); // a reset may overtake what was sent
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(l.other->wait() == 0);
}

TEST_CASE("child: requests behind a dropped link end", "[.child]") {
  connecting c;
  to_parent(c);
  for (int i = 0; i < 3; ++i)
    REQUIRE(c.send() == 0);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("A link between processes is dropped after the messages that were sent") {
  listening l("child: requests behind a dropped link end", "drop=send:3");
  CHECK(completion(l.accepted.e.id->recv_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(l.accepted.e.id->recv_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(l.accepted.e.id->recv_cq).status == IBV_WC_WR_FLUSH_ERR);
  CHECK(l.other->wait() == 0);
}

TEST_CASE("child: several messages at once", "[.child]") {
  connecting c;
  to_parent(c);
  ibv_sge e{reinterpret_cast<std::uintptr_t>(c.memory.data()), 16, c.mr->lkey};
  std::array<ibv_send_wr, messages> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].sg_list = &e;
    all[i].num_sge = 1;
    all[i].opcode = IBV_WR_SEND;
    all[i].next = i + 1 < all.size() ? &all[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  meet(parent_channel);
  REQUIRE(ibv_post_send(c.e.id->qp, all.data(), &bad) == 0);
  meet(parent_channel);
}

TEST_CASE("A receive fails among messages of another process, and its queue pair with it") {
  listening l("child: several messages at once", "");
  with_settings set("fail=recv:3:loc_prot");
  meet(l.other->channel());
  ibv_cq* const q = l.accepted.e.id->recv_cq;
  for (int i = 1; i <= messages; ++i) {
    INFO(i);
    CHECK(completion(q).status == (i < 3    ? IBV_WC_SUCCESS
                                   : i == 3 ? IBV_WC_LOC_PROT_ERR
                                            : IBV_WC_WR_FLUSH_ERR));
  }
  meet(l.other->channel());
  CHECK(l.other->wait() == 0);
}

TEST_CASE("A receive drops the link to another process, whose requests end after their timeout") {
  listening l("child: several messages at once", "");
  with_settings set("drop=recv:3");
  meet(l.other->channel());
  ibv_cq* const q = l.accepted.e.id->recv_cq;
  for (int i = 1; i <= 3; ++i)
    CHECK(completion(q).status == IBV_WC_SUCCESS);
  REQUIRE(l.accepted.send() == 0);
  CHECK(completion(l.accepted.e.id->send_cq).status == IBV_WC_RETRY_EXC_ERR);
  for (int i = 4; i <= messages; ++i)
    CHECK(completion(q).status == IBV_WC_WR_FLUSH_ERR);
  meet(l.other->channel());
  CHECK(l.other->wait() == 0);
}

TEST_CASE("child: the second request fails and the first is delayed", "[.child]") {
  connecting c;
  to_parent(c);
  const auto posted = clock::now();
  REQUIRE(c.send() == 0);
  REQUIRE(c.send() == 0);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_SUCCESS);
  CHECK(clock::now() - posted >= std::chrono::milliseconds(15));
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_REM_OP_ERR);
}

TEST_CASE("Requests to another process are delayed and fail") {
  listening l("child: the second request fails and the first is delayed",
              "delay=send:1:15ms,fail=send:2:rem_op");
  CHECK(completion(l.accepted.e.id->recv_cq).status == IBV_WC_SUCCESS);
  CHECK(completion(l.accepted.e.id->recv_cq).status == IBV_WC_WR_FLUSH_ERR);
  CHECK(l.other->wait() == 0);
}

TEST_CASE("Requests to connect are rejected as stale as often as was set") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  with_settings set("stale=2");
  for (int i = 0; i < 2; ++i) {
    endpoint e;
    resolve(e, port);
    CHECK(connect(e) == -1);
    CHECK(errno == ECONNREFUSED);
    REQUIRE(e.id->event != nullptr);
    CHECK(e.id->event->event == RDMA_CM_EVENT_REJECTED);
    CHECK(e.id->event->status == 10);
  }
  set.replace("fail=connect:1:no_listener");
  endpoint e;
  resolve(e, port);
  CHECK(connect(e) == -1);
  CHECK(e.id->event->status == 8);
}

TEST_CASE("child: requests are built for another process", "[.child]") {
  connecting c;
  resolve(c.e, variable("PORT"));
  rdma_destroy_qp(c.e.id);
  ibv_qp_init_attr_ex init{};
  init.cap.max_send_wr = init.cap.max_recv_wr = 64;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_SEND;
  REQUIRE(rdma_create_qp_ex(c.e.id, &init) == 0);
  CHECK(rdma_create_qp_ex(c.e.id, &init) == -1); // it has one
  CHECK(errno == EINVAL);
  c.prepare();
  c.receive();
  REQUIRE(connect(c.e) == 0);
  REQUIRE(completion(c.e.id->recv_cq).status == IBV_WC_SUCCESS);
  ibv_qp_ex* const q = ibv_qp_to_qp_ex(c.e.id->qp);
  REQUIRE(q != nullptr);
  std::array<char, 16> text{"built"};
  for (int round = 0; round < 2; ++round) {
    ibv_wr_start(q);
    for (int i = 0; i < messages / 2; ++i) {
      ibv_wr_send(q);
      ibv_wr_set_inline_data(q, text.data(), text.size());
    }
    REQUIRE(ibv_wr_complete(q) == 0);
  }
  for (int i = 0; i < messages; ++i)
    CHECK(completion(c.e.id->send_cq).status == IBV_WC_SUCCESS);
}

TEST_CASE("Built requests reach another process, by a queue pair of rdma_create_qp_ex") {
  listening l("child: requests are built for another process", "");
  for (int i = 0; i < messages; ++i) {
    const ibv_wc wc = completion(l.accepted.e.id->recv_cq);
    REQUIRE(wc.status == IBV_WC_SUCCESS);
    CHECK(wc.byte_len == 16);
  }
  CHECK(std::string(reinterpret_cast<const char*>(l.accepted.memory.data())) == "built");
  CHECK(l.other->wait() == 0);
}
