// SPDX-License-Identifier: BSL-1.0
// Queue pairs of type UC: what is lost is no failure of the sender, within a process and between
// two.
#include "support/fixture.hpp"
#include "support/processes.hpp"
#include "support/raw_peer.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <poll.h>

using namespace soft::test;

namespace {

constexpr side::options unreliable{.type = IBV_QPT_UC};

/// The memory and the number of a queue pair, for its peer.
struct card {
  std::uint64_t address;
  std::uint32_t key, number;
};

card card_of(const side& s) {
  return {reinterpret_cast<std::uintptr_t>(s.memory.data()), s.mr->rkey, s.qp->qp_num};
}

// Posts a signaled request with `bytes` of the memory's beginning.
int post(side& s, std::uint64_t id, ibv_wr_opcode opcode, const card& to, std::uint64_t offset = 0,
         std::uint32_t bytes = 8) {
  ibv_sge e = s.element(0, bytes);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.wr_id = id;
  wr.sg_list = &e;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.imm_data = htonl(static_cast<std::uint32_t>(id));
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = to.address + offset;
  wr.wr.rdma.rkey = to.key;
  return ibv_post_send(s.qp.get(), &wr, &bad);
}

void make_ready(side& s, std::uint32_t peer) {
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  REQUIRE(s.to(IBV_QPS_RTR, peer, 0) == 0);
  REQUIRE(s.to(IBV_QPS_RTS) == 0);
}

// One of two processes, with a queue pair that is ready. Its receives use 256 bytes each, from 1024
// on.
struct half {
  explicit half(int to_other, const side::options& o = unreliable)
      : channel(to_other), context(open_soft()), s(*context, o) {
    other = trade(channel, card_of(s));
    make_ready(s, other.number);
    find_other();
  }
  void receive(std::uint64_t id) { REQUIRE(s.receive(id, 1024 + 256 * id) == 0); }
  void send(std::uint64_t id, std::uint32_t bytes = 8) {
    s.memory[0] = static_cast<std::byte>(id);
    REQUIRE(post(s, id, IBV_WR_SEND, other, 0, bytes) == 0);
    CHECK(s.completion().status == IBV_WC_SUCCESS);
  }
  // A WRITE to byte 512 of the peer: it comes after all that was sent before.
  void mark(std::uint64_t id) {
    s.memory[0] = static_cast<std::byte>(id);
    REQUIRE(post(s, id, IBV_WR_RDMA_WRITE, other, 512) == 0);
    CHECK(s.completion().status == IBV_WC_SUCCESS);
  }
  void wait_for_mark(std::uint64_t id) const {
    wait_for(s.memory[512], static_cast<std::byte>(id));
  }
  // The peer loses messages until both queue pairs are connected, which may take longer than the
  // second that the device waits. So each half writes 1 to byte 768 of the other one again and
  // again, and 2 once it has got a byte. A half that gets 2 knows that its own bytes arrive.
  void find_other() {
    for (std::byte theirs{}; theirs != std::byte{2};) {
      theirs = value_now(s.memory[768]);
      s.memory[0] = theirs == std::byte{} ? std::byte{1} : std::byte{2};
      REQUIRE(post(s, 0, IBV_WR_RDMA_WRITE, other, 768, 1) == 0);
      REQUIRE(s.completion().status == IBV_WC_SUCCESS);
    }
  }
  std::byte first_byte(std::uint64_t receive) const { return s.memory[1024 + 256 * receive]; }

  int channel;
  owned_context context;
  side s;
  card other;
};

} // namespace

TEST_CASE("A queue pair of type UC has no READ and no atomic operation") {
  const auto opcode =
      GENERATE(IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP);
  connected_pair p(unreliable);
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.a.remote(2, opcode, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_LOC_QP_OP_ERR);
  CHECK(p.b.is_quiet());
}

TEST_CASE("child: each kind of message", "[.child]") {
  half h(parent_channel);
  meet(h.channel);
  h.s.memory[0] = std::byte{11};
  REQUIRE(post(h.s, 1, IBV_WR_SEND, h.other) == 0);
  REQUIRE(post(h.s, 2, IBV_WR_SEND_WITH_IMM, h.other) == 0);
  REQUIRE(post(h.s, 3, IBV_WR_RDMA_WRITE, h.other, 512) == 0);
  REQUIRE(post(h.s, 4, IBV_WR_RDMA_WRITE_WITH_IMM, h.other, 520) == 0);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    const ibv_wc wc = h.s.completion();
    CHECK(wc.wr_id == i);
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
  REQUIRE(post(h.s, 5, IBV_WR_RDMA_READ, h.other) == 0);
  CHECK(h.s.completion().status == IBV_WC_LOC_QP_OP_ERR);
  meet(h.channel);
}

TEST_CASE("Queue pairs of type UC of two processes exchange SENDs and WRITEs with immediate data") {
  child other("child: each kind of message", {});
  half h(other.channel());
  for (std::uint64_t i = 1; i <= 3; ++i)
    h.receive(i);
  meet(h.channel);
  const ibv_wc sent = h.s.completion(), immediate = h.s.completion(), written = h.s.completion();
  CHECK(sent.wr_id == 1);
  CHECK(sent.status == IBV_WC_SUCCESS);
  CHECK(sent.opcode == IBV_WC_RECV);
  CHECK(sent.byte_len == 8);
  CHECK(h.first_byte(1) == std::byte{11});
  CHECK(immediate.wr_id == 2);
  CHECK(immediate.wc_flags == IBV_WC_WITH_IMM);
  CHECK(immediate.imm_data == htonl(2));
  CHECK(written.wr_id == 3);
  CHECK(written.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(written.imm_data == htonl(4));
  CHECK(written.byte_len == 8);
  CHECK(h.s.memory[512] == std::byte{11});
  CHECK(h.s.memory[520] == std::byte{11});
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("child: messages that find no receive", "[.child]") {
  half h(parent_channel);
  meet(h.channel);
  h.send(1);
  h.send(2);
  REQUIRE(post(h.s, 3, IBV_WR_RDMA_WRITE_WITH_IMM, h.other, 520) == 0);
  CHECK(h.s.completion().status == IBV_WC_SUCCESS);
  h.mark(4);
  meet(h.channel);
  h.send(5);
  CHECK(state_of(*h.s.qp) == IBV_QPS_RTS);
  meet(h.channel);
}

TEST_CASE("A message of type UC that finds no receive is dropped") {
  child other("child: messages that find no receive", {});
  half h(other.channel());
  h.receive(1);
  meet(h.channel);
  CHECK(h.s.completion().wr_id == 1);
  CHECK(h.first_byte(1) == std::byte{1});
  h.wait_for_mark(4);
  h.receive(2);
  meet(h.channel);
  const ibv_wc wc = h.s.completion();
  CHECK(wc.wr_id == 2);
  CHECK(wc.opcode == IBV_WC_RECV);
  CHECK(h.first_byte(2) == std::byte{5});
  CHECK(state_of(*h.s.qp) == IBV_QPS_RTS);
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("child: WRITEs with a wrong key", "[.child]") {
  half h(parent_channel);
  meet(h.channel);
  const card right = h.other;
  h.other.key ^= 0x100;
  REQUIRE(post(h.s, 1, IBV_WR_RDMA_WRITE, h.other) == 0);
  REQUIRE(post(h.s, 2, IBV_WR_RDMA_WRITE_WITH_IMM, h.other) == 0);
  REQUIRE(post(h.s, 3, IBV_WR_RDMA_WRITE, right, 4095) == 0); // beyond the end
  for (int i = 0; i < 3; ++i)
    CHECK(h.s.completion().status == IBV_WC_SUCCESS);
  h.send(4);
  h.other = right;
  REQUIRE(post(h.s, 5, IBV_WR_RDMA_WRITE_WITH_IMM, h.other, 512) == 0);
  CHECK(h.s.completion().status == IBV_WC_SUCCESS);
  meet(h.channel);
}

TEST_CASE("A WRITE of type UC that the peer does not allow is dropped, with its immediate data") {
  child other("child: WRITEs with a wrong key", {});
  half h(other.channel());
  h.receive(1);
  h.receive(2);
  meet(h.channel);
  const ibv_wc sent = h.s.completion(), written = h.s.completion();
  CHECK(sent.wr_id == 1);
  CHECK(sent.opcode == IBV_WC_RECV);
  CHECK(h.first_byte(1) == std::byte{4});
  CHECK(written.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(written.imm_data == htonl(5));
  CHECK(h.s.memory[4095] == std::byte{0});
  CHECK(state_of(*h.s.qp) == IBV_QPS_RTS);
  CHECK_FALSE(has_event(*h.context));
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("child: SENDs that invalidate a window", "[.child]") {
  half h(parent_channel);
  card window = h.other;
  window.key = trade(h.channel, std::uint32_t{});
  REQUIRE(post(h.s, 1, IBV_WR_RDMA_WRITE_WITH_IMM, window, 512) == 0);
  CHECK(h.s.completion().status == IBV_WC_SUCCESS);
  for (std::uint64_t id = 2; id <= 3; ++id) { // the second SEND finds nothing to invalidate
    ibv_sge e = h.s.element(0, 8);
    ibv_send_wr wr = side::request(id, IBV_WR_SEND_WITH_INV, e), *bad = nullptr;
    wr.invalidate_rkey = window.key;
    REQUIRE(ibv_post_send(h.s.qp.get(), &wr, &bad) == 0);
    CHECK(h.s.completion().status == IBV_WC_SUCCESS);
    REQUIRE(post(h.s, 4, IBV_WR_RDMA_WRITE, window, 520) == 0); // is dropped
    CHECK(h.s.completion().status == IBV_WC_SUCCESS);
    meet(h.channel);
  }
  CHECK(state_of(*h.s.qp) == IBV_QPS_RTS);
}

TEST_CASE("A SEND of type UC invalidates a window, or fails the receiver alone") {
  child other("child: SENDs that invalidate a window", {});
  half h(other.channel());
  for (std::uint64_t id = 1; id <= 4; ++id)
    h.receive(id);
  ibv_mw* const w = ibv_alloc_mw(h.s.pd.get(), IBV_MW_TYPE_2);
  REQUIRE(w != nullptr);
  const std::uint32_t key = ibv_inc_rkey(w->rkey);
  ibv_send_wr bind{}, *bad = nullptr;
  bind.opcode = IBV_WR_BIND_MW;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_mw = {
      w, key, {h.s.mr.get(), h.s.element(0, 0).addr, h.s.memory.size(), IBV_ACCESS_REMOTE_WRITE}};
  REQUIRE(ibv_post_send(h.s.qp.get(), &bind, &bad) == 0);
  CHECK(h.s.completion().status == IBV_WC_SUCCESS);
  trade(h.channel, key);
  const ibv_wc written = h.s.completion();
  CHECK(written.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(written.status == IBV_WC_SUCCESS);
  const ibv_wc sent = h.s.completion();
  CHECK(sent.wr_id == 2);
  CHECK(sent.status == IBV_WC_SUCCESS);
  CHECK(sent.wc_flags == IBV_WC_WITH_INV);
  CHECK(sent.invalidated_rkey == key);
  meet(h.channel);
  CHECK(h.s.completion().status != IBV_WC_SUCCESS);
  CHECK(h.s.completion().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(state_of(*h.s.qp) == IBV_QPS_ERR);
  CHECK(h.s.memory[520] == std::byte{0});
  CHECK(ibv_dealloc_mw(w) == 0);
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("A WRITE of type UC whose memory is deregistered meanwhile is dropped") {
  const auto context = open_soft();
  side s(*context, unreliable);
  make_ready(s, number_of_raw_peer);
  REQUIRE(s.receive(1) == 0);
  raw_peer peer(*s.qp);
  soft::iwarp::start_options o;
  o.peer_to_peer = true;
  peer.send_request(*s.qp, o);
  REQUIRE_FALSE(peer.start(true).rejected);
  std::vector<std::byte> memory(32768);
  owned_mr mr(ibv_reg_mr(s.pd.get(), memory.data(), memory.size(),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  REQUIRE(mr);
  const auto write =
      raw_peer::fpdu(peer.writer,
                     {.op = soft::iwarp::opcode::rdma_write,
                      .length = 32768,
                      .stag = mr->rkey,
                      .tagged_offset = reinterpret_cast<std::uintptr_t>(memory.data())},
                     std::vector<std::byte>(memory.size(), std::byte{1}));
  peer.send(std::span(write).first(10000));
  wait_for(memory[9000], std::byte{1});
  mr.reset();
  peer.send(std::span(write).subspan(10000));
  peer.send({.op = soft::iwarp::opcode::send, .length = 8}, std::vector<std::byte>(8));
  const ibv_wc wc = s.completion();
  CHECK(wc.wr_id == 1);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(memory[10000] == std::byte{0});
  CHECK(memory.back() == std::byte{0});
  CHECK(state_of(*s.qp) == IBV_QPS_RTS);
}

TEST_CASE("child: a message that is too long", "[.child]") {
  half h(parent_channel);
  meet(h.channel);
  h.send(1, 512);
  meet(h.channel);
  h.send(2);
  CHECK(state_of(*h.s.qp) == IBV_QPS_RTS);
}

TEST_CASE("A message of type UC that is too long for its receive fails the receiver alone") {
  child other("child: a message that is too long", {});
  half h(other.channel());
  h.receive(1);
  h.receive(2);
  meet(h.channel);
  CHECK(h.s.completion().status == IBV_WC_LOC_LEN_ERR);
  CHECK(h.s.completion().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(state_of(*h.s.qp) == IBV_QPS_ERR);
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("child: a peer that ends and comes back", "[.child]") {
  half h(parent_channel);
  meet(h.channel);
  h.send(1);
  meet(h.channel);
  REQUIRE(h.s.to(IBV_QPS_RESET) == 0);
  meet(h.channel);
  meet(h.channel);
  make_ready(h.s, h.other.number);
  h.receive(1);
  meet(h.channel);
  CHECK(h.s.completion().wr_id == 1);
  meet(h.channel);
}

TEST_CASE("A queue pair of type UC outlives its peer, and finds it again") {
  child other("child: a peer that ends and comes back", {});
  half h(other.channel());
  h.receive(1);
  meet(h.channel);
  CHECK(h.s.completion().wr_id == 1);
  meet(h.channel);
  meet(h.channel);
  h.send(2);
  h.send(3);
  CHECK(state_of(*h.s.qp) == IBV_QPS_RTS);
  meet(h.channel);
  meet(h.channel);
  for (bool delivered = false; !delivered;) { // lost until the peer is found
    h.send(4);
    pollfd p{h.channel, POLLIN, 0};
    delivered = poll(&p, 1, 1) == 1;
  }
  meet(h.channel);
  CHECK(other.wait() == 0);
}
