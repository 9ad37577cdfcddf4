// SPDX-License-Identifier: BSL-1.0
// Queue pairs of two processes that the program connects itself.
#include "support/fixture.hpp"
#include "support/processes.hpp"
#include "support/raw_peer.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

using namespace soft::test;

namespace {

constexpr int messages = 3;
constexpr std::uint8_t timeout =
    17; // 1 s without an answer: the two queue pairs find each other first
constexpr std::uint32_t large = 300'000; // more than the sockets between two processes take

// A queue pair that is connected to the one of the process at the other end of the local socket
// `s`.
struct connected_side : side {
  connected_side(ibv_context& c, int s) : side(c), large_memory(large) {
    large_mr.reset(ibv_reg_mr(pd.get(), large_memory.data(), large, IBV_ACCESS_LOCAL_WRITE));
    REQUIRE(large_mr);
    std::uint32_t peer = 0;
    REQUIRE(write(s, &qp->qp_num, sizeof(qp->qp_num)) == sizeof(qp->qp_num));
    REQUIRE(read(s, &peer, sizeof(peer)) == sizeof(peer));
    REQUIRE(to(IBV_QPS_INIT) == 0);
    REQUIRE(to(IBV_QPS_RTR, peer) == 0);
    REQUIRE(to(IBV_QPS_RTS, 0u, timeout) == 0);
  }
  ibv_sge large_element() {
    return {reinterpret_cast<std::uintptr_t>(large_memory.data()), large, large_mr->lkey};
  }
  std::vector<std::byte> large_memory;
  owned_mr large_mr;
};

// The part of the other process: the hidden test cases below.
struct other_process {
  other_process() : context(open_soft()), peer(*context, std::atoi(std::getenv("SOCKET"))) {}
  owned_context context;
  connected_side peer;
};

// A process that runs the test case `name`, and a queue pair that is connected to its own.
struct two_processes {
  explicit two_processes(const std::string& name) : context(open_soft()) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    other.emplace(name, child::variables{{"SOCKET", std::to_string(ends[1])}});
    own.emplace(*context, ends[0]);
    close(ends[0]);
    close(ends[1]);
  }
  owned_context context;
  std::optional<child> other;
  std::optional<connected_side> own;
};

} // namespace

namespace {

// A raw peer that has sent its request, which the device has got.
struct early_peer {
  explicit early_peer(const ibv_qp& qp) : peer(qp) {
    soft::iwarp::start_options o;
    o.peer_to_peer = true;
    peer.send_request(qp, o);
    ibv_qp unknown = qp;
    unknown.qp_num ^= 0x800;
    raw_peer behind(unknown); // its request comes behind the first
    behind.send_request(unknown, o);
    CHECK(behind.start(true).rejected);
    CHECK(behind.at_end());
  }
  raw_peer peer;
};

} // namespace

TEST_CASE("The request of a peer waits until the queue pair is ready to receive") {
  const auto type = GENERATE(IBV_QPT_RC, IBV_QPT_UC);
  const auto context = open_soft();
  side s(*context, {.type = type});
  REQUIRE(s.receive(1) == EINVAL);
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  REQUIRE(s.receive(1) == 0);
  { const early_peer gives_up(*s.qp); }
  early_peer p(*s.qp), other(*s.qp); // the second request replaces the first
  CHECK(p.peer.at_end());
  REQUIRE(s.to(IBV_QPS_RTR, number_of_raw_peer) == 0);
  CHECK_FALSE(other.peer.start(true).rejected);
  other.peer.send({.op = soft::iwarp::opcode::send, .length = 8}, std::vector<std::byte>(8));
  CHECK(s.completion().wr_id == 1);
}

TEST_CASE("The request of a peer is rejected if its queue pair is destroyed") {
  const auto context = open_soft();
  side s(*context);
  early_peer p(*s.qp);
  s.qp.reset();
  CHECK(p.peer.start(true).rejected);
  CHECK(p.peer.at_end());
}

TEST_CASE("child: answers a message", "[.child]") {
  other_process p;
  REQUIRE(p.peer.receive(1) == 0);
  REQUIRE(p.peer.completion().status == IBV_WC_SUCCESS);
  REQUIRE(p.peer.send(2) == 0);
  CHECK(p.peer.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("The end of a peer's process does not flush receives, and requests get no answer") {
  two_processes t("child: answers a message");
  for (std::uint64_t id = 1; id <= messages; ++id)
    REQUIRE(t.own->receive(id) == 0);
  REQUIRE(t.own->send(10) == 0);
  CHECK(t.own->completion().wr_id == 10);
  CHECK(t.own->completion().wr_id == 1);
  CHECK(t.other->wait() == 0);
  // The request fails after the peer's end was seen, and then the queue pair does.
  REQUIRE(t.own->send(11) == 0);
  const ibv_wc failed = t.own->completion();
  CHECK(failed.wr_id == 11);
  CHECK(failed.status == IBV_WC_RETRY_EXC_ERR);
  for (std::uint64_t id = 2; id <= messages; ++id) {
    const ibv_wc flushed = t.own->completion();
    CHECK(flushed.wr_id == id);
    CHECK(flushed.status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("child: sends messages", "[.child]") {
  other_process p;
  for (std::uint64_t id = 1; id <= messages; ++id)
    REQUIRE(p.peer.send(id) == 0);
  for (int i = 0; i < messages; ++i)
    REQUIRE(p.peer.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("Messages that wait for receives outlive the process that has sent them") {
  two_processes t("child: sends messages");
  CHECK(t.other->wait() == 0);
  for (std::uint64_t id = 1; id <= messages; ++id) {
    REQUIRE(t.own->receive(id) == 0);
    const ibv_wc wc = t.own->completion();
    CHECK(wc.wr_id == id);
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("child: sends a large message and ends at its completion", "[.child]") {
  other_process p;
  ibv_sge e = p.peer.large_element();
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &e;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  REQUIRE(ibv_post_send(p.peer.qp.get(), &wr, &bad) == 0);
  REQUIRE(p.peer.completion().status == IBV_WC_SUCCESS);
  _exit(0);
}

TEST_CASE("A message arrives even if its sender's process ends at the completion") {
  for (int run = 0; run < 5; ++run) {
    two_processes t("child: sends a large message and ends at its completion");
    ibv_sge e = t.own->large_element();
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.sg_list = &e;
    wr.num_sge = 1;
    REQUIRE(ibv_post_recv(t.own->qp.get(), &wr, &bad) == 0);
    CHECK(t.other->wait() == 0);
    // If the message were cut off, this request would fail.
    REQUIRE(t.own->send(1) == 0);
    const ibv_wc wc = t.own->completion();
    CHECK(wc.opcode == IBV_WC_RECV);
    CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(wc.byte_len == large);
  }
}
