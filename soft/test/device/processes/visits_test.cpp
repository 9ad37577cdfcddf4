// SPDX-License-Identifier: BSL-1.0
// Sockets that threads of the program serve while they look for completions.
#include "support/fixture.hpp"
#include "support/raw_connection.hpp"

#include "iwarp/rdmap_payload.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <thread>

using namespace soft::test;
using soft::iwarp::opcode;

namespace {

constexpr int rounds = 100;

struct visited : connected_to_raw {
  visited() : connected_to_raw(4) { REQUIRE(ibv_req_notify_cq(s.cq.get(), 0) == 0); }

  // Polls so often that the engine leaves the socket to this thread.
  void poll_often() {
    for (int i = 0; i < 64; ++i)
      REQUIRE(s.is_quiet());
  }
  // Takes the event, if the queue is armed, which would stop the polls from serving the socket.
  void disarm() {
    if (!armed)
      return;
    armed = false;
    REQUIRE(s.receive(1) == 0);
    send();
    CHECK(s.completion().wr_id == 1);
    take_event();
  }
  void arm() {
    REQUIRE(ibv_req_notify_cq(s.cq.get(), 0) == 0);
    armed = true;
  }
  void take_event() {
    ibv_cq* q = nullptr;
    void* of = nullptr;
    int error = 0;
    while ((error = ibv_get_cq_event(s.channel.get(), &q, &of)) != 0 && errno == EAGAIN)
      ;
    REQUIRE(error == 0);
    ibv_ack_cq_events(q, 1);
  }
  bool no_event() {
    ibv_cq* q = nullptr;
    void* of = nullptr;
    return ibv_get_cq_event(s.channel.get(), &q, &of) == -1 && errno == EAGAIN;
  }
  void send() { peer->send({.op = opcode::send, .length = 8}, bytes); }
  void write(std::byte value) {
    peer->send({.op = opcode::rdma_write,
                .length = 1,
                .stag = s.mr->rkey,
                .tagged_offset = reinterpret_cast<std::uintptr_t>(s.memory.data())},
               std::span(&value, 1));
  }
  bool has(std::byte value) const { return is_now(s.memory[0], value); }
  bool polls_readable() const {
    pollfd p{s.channel->fd, POLLIN, 0};
    return poll(&p, 1, 0) == 1;
  }
  void set_blocking(bool blocks) {
    const int flags = fcntl(s.channel->fd, F_GETFL);
    REQUIRE(fcntl(s.channel->fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0);
  }

  std::array<std::byte, 8> bytes{};
  bool armed = true;
};

// Gives `of` a new queue pair, which is connected to `peer`.
void connect_again(side& of, ibv_cq& sends, ibv_cq& receives, std::optional<raw_peer>& peer) {
  ibv_qp_init_attr a{};
  a.send_cq = &sends;
  a.recv_cq = &receives;
  a.cap = {8, 8, 1, 1, 0};
  a.qp_type = IBV_QPT_RC;
  of.qp.reset(ibv_create_qp(of.pd.get(), &a));
  REQUIRE(of.qp);
  REQUIRE(of.to(IBV_QPS_INIT) == 0);
  REQUIRE(of.to(IBV_QPS_RTR, number_of_raw_peer, 0) == 0);
  REQUIRE(of.to(IBV_QPS_RTS) == 0);
  peer.emplace(*of.qp);
  soft::iwarp::start_options o;
  o.peer_to_peer = true;
  o.ird = o.ord = 4;
  peer->send_request(*of.qp, o);
  CHECK_FALSE(peer->start(true).rejected);
  peer->send({.op = opcode::rdma_write}, {}); // the device may send from now on
}
void connect_again(side& of, ibv_cq& q, std::optional<raw_peer>& peer) {
  connect_again(of, q, q, peer);
}

} // namespace

// The answer shows that the request was served.
TEST_CASE("The engine serves a peer's READ if the program does not come any more") {
  visited c;
  for (int i = 0; i < rounds; ++i) {
    c.disarm();
    c.poll_often();
    const auto request = encode(soft::iwarp::read_request{
        1, 0, 8, c.s.mr->rkey, reinterpret_cast<std::uintptr_t>(c.s.memory.data())});
    for (int n = 0; n < 3; ++n) {
      c.peer->send({.op = opcode::rdma_read_request, .length = soft::iwarp::read_request_size},
                   request);
      CHECK(c.peer->next().header.op == opcode::rdma_read_response);
    }
  }
}

TEST_CASE("The engine serves a peer's WRITE if the program does not come any more") {
  visited c;
  for (int i = 1; i <= rounds; ++i) {
    c.disarm();
    c.poll_often();
    for (int n = 0; n < 3; ++n) {
      const auto value = static_cast<std::byte>(i + 128 * (n % 2));
      c.write(value);
      wait_for(c.s.memory[0], value);
    }
  }
}

// ibv_get_cq_event(3) would wait.
TEST_CASE("The descriptor of a channel that blocks polls as readable for an event only") {
  const bool did_not_block = GENERATE(false, true);
  visited c;
  if (did_not_block) {
    c.set_blocking(false);
    c.arm(); // the device looks at the descriptor here
    c.set_blocking(true);
  }
  for (int i = 1; i <= rounds; ++i) {
    c.disarm();
    c.poll_often();
    c.arm();
    const auto value = static_cast<std::byte>(i);
    c.write(value);
    bool readable = false;
    while (!c.has(value))
      readable = c.polls_readable() || readable;
    CHECK_FALSE(readable);
  }
}

// The engine may come first, so not each time.
TEST_CASE("A message wakes a program that waits for a channel that does not block") {
  visited c;
  c.set_blocking(false);
  int woken = 0;
  for (int i = 1; woken == 0 && i != 100 * rounds; ++i) {
    c.disarm();
    c.poll_often();
    c.arm();
    const auto value = static_cast<std::byte>(i);
    c.write(value);
    while (!c.has(value))
      if (c.polls_readable()) {
        ++woken;
        CHECK(c.no_event());
        wait_for(c.s.memory[0], value);
      }
  }
  CHECK(woken != 0);
}

// The program does not look at the queue of the receives while it waits for the answer.
TEST_CASE("The engine serves a READ whose completion goes to another queue") {
  visited c;
  c.set_blocking(false);
  c.s.qp.reset();
  const owned_cq sends(ibv_create_cq(c.context.get(), 8, nullptr, nullptr, 0));
  REQUIRE(sends);
  connect_again(c.s, *sends, *c.s.cq, c.peer);
  bool readable = false;
  for (int i = 0; i < rounds; ++i) {
    c.disarm();
    c.poll_often();
    c.arm();
    c.read(1);
    const auto request = c.peer->next();
    REQUIRE(request.header.op == opcode::rdma_read_request);
    soft::iwarp::read_request r;
    decode(std::span<const std::byte, soft::iwarp::read_request_size>(request.payload), r);
    c.peer->send({.op = opcode::rdma_read_response,
                  .length = r.length,
                  .stag = r.sink_stag,
                  .tagged_offset = r.sink_offset},
                 c.bytes);
    ibv_wc wc{};
    while (ibv_poll_cq(sends.get(), 1, &wc) == 0)
      readable = c.polls_readable() || readable;
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
  CHECK_FALSE(readable);
  c.s.qp.reset(); // before its queue
}

TEST_CASE("Each message has its event, if the program or the engine serves the socket") {
  const bool blocks = GENERATE(false, true);
  visited c;
  c.set_blocking(blocks);
  for (int i = 0; i < rounds; ++i) {
    c.disarm();
    if (i % 2 == 0)
      c.poll_often();
    c.arm();
    REQUIRE(c.s.receive(2) == 0);
    std::thread other([&] { c.send(); });
    pollfd p{c.s.channel->fd, POLLIN, 0};
    if (!blocks || i % 4 < 2)
      CHECK(poll(&p, 1, -1) == 1);
    c.take_event();
    other.join();
    c.armed = false;
    CHECK(c.s.completion().wr_id == 2);
    CHECK(c.s.is_quiet());
    CHECK_FALSE(c.polls_readable());
  }
}

// One thread serves both sockets, and takes one event.
TEST_CASE("A message of another queue of the channel has its event, too") {
  visited c;
  c.set_blocking(false);
  side other(*c.context);
  other.qp.reset(); // before its queue
  other.cq.reset(ibv_create_cq(c.context.get(), 8, nullptr, c.s.channel.get(), 0));
  REQUIRE(other.cq);
  std::optional<raw_peer> peer;
  connect_again(other, *other.cq, peer);
  for (int i = 0; i < rounds; ++i) {
    c.disarm();
    c.poll_often();
    c.arm();
    REQUIRE(ibv_req_notify_cq(other.cq.get(), 0) == 0);
    REQUIRE(c.s.receive(1) == 0);
    REQUIRE(other.receive(2) == 0);
    c.send();
    peer->send({.op = opcode::send, .length = 8}, c.bytes);
    for (int n = 0; n < 2; ++n) {
      pollfd p{c.s.channel->fd, POLLIN, 0};
      REQUIRE(poll(&p, 1, -1) == 1);
      ibv_cq* q = nullptr;
      void* of = nullptr;
      if (ibv_get_cq_event(c.s.channel.get(), &q, &of) == 0)
        ibv_ack_cq_events(q, 1);
      else
        --n; // the message has not come
    }
    c.armed = false;
    CHECK(c.s.completion().wr_id == 1);
    CHECK(other.completion().wr_id == 2);
  }
  other.qp.reset();
  other.cq.reset(); // before the channel
}

TEST_CASE("A queue pair is destroyed while another thread polls its queue and has its messages") {
  const auto context = open_soft();
  side of(*context); // its completion queue is used
  std::atomic<bool> ends{false};
  std::thread polling([&] {
    ibv_wc wc{};
    while (!ends)
      ibv_poll_cq(of.cq.get(), 1, &wc);
  });
  for (int i = 0; i < rounds; ++i) {
    std::optional<raw_peer> peer;
    connect_again(of, *of.cq, peer);
    for (int n = 0; n < 4; ++n) {
      REQUIRE(of.receive(1) == 0);
      peer->send({.op = opcode::send, .length = 8}, std::array<std::byte, 8>{});
    }
    of.qp.reset();
  }
  ends = true;
  polling.join();
}
