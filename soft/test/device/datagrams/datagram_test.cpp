// SPDX-License-Identifier: BSL-1.0
// Queue pairs of type UD, within a process and between two.
#include "datagrams.hpp"
#include "support/processes.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

using namespace soft::test;

namespace {

// One of two processes.
struct half {
  explicit half(int to_other, bool v6 = false)
      : channel(to_other), context(open_soft()), d(*context, v6) {
    other = trade(channel, d.number());
  }
  void send(std::uint64_t id) {
    REQUIRE(d.send(id, other) == 0);
    CHECK(d.s.completion().status == IBV_WC_SUCCESS);
  }
  int channel;
  owned_context context;
  datagram_side d;
  std::uint32_t other;
};

// Checks a receive of a datagram that a loopback address sent to itself, and that the header tells
// the way back.
void check_header(datagram_side& d, ibv_wc wc, bool v6) {
  CHECK(wc.byte_len == sizeof(ibv_grh) + 8);
  CHECK((wc.wc_flags & IBV_WC_GRH) != 0);
  CHECK(wc.sl == (v6 ? 9 : 10));
  ibv_grh* const header = d.header(wc.wr_id);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(header);
  if (v6) {
    CHECK(header->version_tclass_flow == htonl(0x62a00000));
    CHECK(header->hop_limit == 5);
    CHECK(header->sgid.raw[15] == 1);
  } else {
    CHECK(std::all_of(bytes, bytes + 20, [](unsigned char b) { return b == 0; }));
    CHECK(bytes[20] == 0x45);
    CHECK(bytes[28] == 5); // time to live
    CHECK(bytes[32] == 127);
  }
  ibv_ah_attr a{};
  ibv_context& c = *d.s.qp->context;
  REQUIRE(ibv_init_ah_from_wc(&c, 1, &wc, header, &a) == 0);
  CHECK(a.is_global == 1);
  CHECK(a.port_num == 1);
  CHECK(a.grh.sgid_index == loopback_index(c, v6));
  CHECK(a.grh.dgid.raw[15] == 1);
  CHECK(a.grh.traffic_class == 0x2a);
}

// Replaces the way by that back to the sender of a datagram.
void answer(datagram_side& d, ibv_wc wc) {
  d.way.reset(ibv_create_ah_from_wc(d.s.pd.get(), &wc, d.header(wc.wr_id), 1));
  REQUIRE(d.way);
  REQUIRE(d.send(9, wc.src_qp) == 0);
  CHECK(d.s.completion().status == IBV_WC_SUCCESS);
}

} // namespace

TEST_CASE("A datagram keeps its way although its address handle is destroyed after the post") {
  const with_settings set("latency=100ms");
  const auto context = open_soft();
  datagram_side a(*context), b(*context);
  b.receive(1);
  REQUIRE(a.send(7, b.number()) == 0);
  a.way.reset();
  const datagram_side other(*context, true); // its handle may have that one's memory
  check_header(b, b.s.completion(), false);
}

TEST_CASE("A datagram without an address handle is not posted") {
  const auto context = open_soft();
  datagram_side a(*context);
  a.way.reset();
  CHECK(a.send(7, a.number()) == EINVAL);
}

TEST_CASE("A datagram within a process comes with the header of its network layer") {
  const bool v6 = GENERATE(false, true);
  const auto context = open_soft();
  datagram_side a(*context, v6), b(*context, v6);
  a.receive(1);
  b.receive(1);
  REQUIRE(a.send(7, b.number(), test_q_key, IBV_WR_SEND_WITH_IMM) == 0);
  const ibv_wc wc = b.s.completion();
  check_header(b, wc, v6);
  CHECK(b.first_byte(1) == std::byte{7});
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(wc.imm_data == htonl(7));
  CHECK(wc.src_qp == a.number());
  CHECK(a.s.completion().wr_id == 7);
  answer(b, wc);
  CHECK(a.s.completion().wr_id == 1);
  CHECK(a.first_byte(1) == std::byte{9});
}

TEST_CASE(
    "The service level of a datagram names its network header only where the adapter does so") {
  const auto [settings, named] =
      GENERATE(std::pair("mlx5", true), std::pair("irdma", false), std::pair("bnxt_re", true),
               std::pair("irdma,header_in_sl=1", true), std::pair("efa", false));
  INFO(settings);
  const with_settings set(settings);
  const auto context = open_soft();
  datagram_side a(*context), b(*context);
  b.receive(1);
  REQUIRE(a.send(7, b.number()) == 0);
  CHECK(b.s.completion().sl == (named ? 10 : 0));
}

TEST_CASE("A completion without a network header, or with a broken one, tells no way back") {
  const auto context = open_soft();
  datagram_side a(*context);
  a.receive(1);
  REQUIRE(a.send(7, a.number()) == 0);
  ibv_wc wc = a.s.completion();
  if (wc.opcode != IBV_WC_RECV)
    wc = a.s.completion();
  REQUIRE(wc.opcode == IBV_WC_RECV);
  ibv_ah_attr attributes{};
  a.s.memory[256 + 28] ^= std::byte{1};
  CHECK(ibv_init_ah_from_wc(context.get(), 1, &wc, a.header(1), &attributes) == -1);
  CHECK(errno == EPROTONOSUPPORT);
  a.s.memory[256 + 28] ^= std::byte{1};
  CHECK(ibv_create_ah_from_wc(a.s.pd.get(), &wc, a.header(1), 2) == nullptr); // no such port
  wc.wc_flags = 0;
  CHECK(ibv_create_ah_from_wc(a.s.pd.get(), &wc, a.header(1), 1) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("An address handle needs a GID of the device, of the kind of the destination") {
  const auto context = open_soft();
  const side s(*context);
  ibv_ah_attr a{};
  a.is_global = 1;
  a.port_num = 1;
  a.grh.sgid_index = loopback_index(*context, true);
  REQUIRE(ibv_query_gid(context.get(), 1, loopback_index(*context), &a.grh.dgid) == 0);
  CHECK(ibv_create_ah(s.pd.get(), &a) == nullptr);
  CHECK(errno == EINVAL);
  a.grh.sgid_index = 255;
  CHECK(ibv_create_ah(s.pd.get(), &a) == nullptr);
  a.grh.sgid_index = loopback_index(*context);
  const owned_ah right(ibv_create_ah(s.pd.get(), &a));
  CHECK(right);
}

TEST_CASE("child: an answer by the completion", "[.child]") {
  half h(parent_channel);
  h.d.receive(1);
  meet(h.channel);
  const ibv_wc wc = h.d.s.completion();
  check_header(h.d, wc, false);
  CHECK(wc.src_qp == h.other);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(wc.imm_data == htonl(7));
  answer(h.d, wc);
  meet(h.channel);
}

TEST_CASE("child: an answer over IPv6", "[.child]") {
  half h(parent_channel, true);
  h.d.receive(1);
  meet(h.channel);
  const ibv_wc wc = h.d.s.completion();
  check_header(h.d, wc, true);
  answer(h.d, wc);
  meet(h.channel);
}

TEST_CASE("Datagrams between two processes") {
  const bool v6 = GENERATE(false, true);
  child other(v6 ? "child: an answer over IPv6" : "child: an answer by the completion", {});
  half h(other.channel(), v6);
  h.d.receive(1);
  meet(h.channel);
  REQUIRE(h.d.send(7, h.other, test_q_key, IBV_WR_SEND_WITH_IMM) == 0);
  CHECK(h.d.s.completion().wr_id == 7);
  const ibv_wc wc = h.d.s.completion();
  check_header(h.d, wc, v6);
  CHECK(wc.src_qp == h.other);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) == 0);
  CHECK(h.d.first_byte(1) == std::byte{9});
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("child: datagrams that are dropped", "[.child]") {
  half h(parent_channel);
  const auto connected = trade(h.channel, std::uint32_t{});
  REQUIRE(h.d.send(1, h.other, test_q_key + 1) == 0);
  REQUIRE(h.d.send(2, h.other ^ 0x800) == 0);
  REQUIRE(h.d.send(3, connected) == 0);
  for (int i = 0; i < 3; ++i)
    CHECK(h.d.s.completion().status == IBV_WC_SUCCESS);
  h.send(4);
  h.send(5); // finds no receive, or one that is too small
  meet(h.channel);
  h.send(6);
  meet(h.channel);
}

TEST_CASE("Datagrams that no queue pair can take are dropped, and are no failure of the sender") {
  child other("child: datagrams that are dropped", {});
  half h(other.channel());
  const bool too_small = GENERATE(false, true);
  const side connected(*h.context);
  h.d.receive(1);
  if (too_small)
    h.d.receive(2, sizeof(ibv_grh) + 7);
  trade(h.channel, connected.qp->qp_num);
  const ibv_wc first = h.d.s.completion();
  CHECK(first.wr_id == 1);
  CHECK(h.d.first_byte(1) == std::byte{4});
  meet(h.channel);
  // Whether the fifth has come yet is not known; the receives for it and the sixth are the same.
  CHECK(h.d.s.is_quiet());
  REQUIRE(h.d.s.to(IBV_QPS_ERR) == 0);
  if (too_small)
    CHECK(h.d.s.completion().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(h.d.s.is_quiet());
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("child: as many receives as there may be", "[.child]") {
  half h(parent_channel);
  for (int i = 0; i < side::depth; ++i)
    h.d.receive(1);
  meet(h.channel);
  for (int i = 0; i < side::depth; ++i)
    CHECK(h.d.s.completion().status == IBV_WC_SUCCESS);
  meet(h.channel);
}

TEST_CASE("A sender waits for a process that has receives and is behind") {
  child other("child: as many receives as there may be", {});
  half h(other.channel());
  meet(h.channel);
  for (int i = 0; i < side::depth; ++i)
    REQUIRE(h.d.send(1, h.other) == 0);
  for (int i = 0; i < side::depth; ++i)
    CHECK(h.d.s.completion().status == IBV_WC_SUCCESS);
  meet(h.channel);
  CHECK(other.wait() == 0);
}

TEST_CASE("Datagrams to a process that is stopped or has ended are lost") {
  child other("child: as many receives as there may be", {});
  half h(other.channel());
  meet(h.channel);
  other.stop();
  const auto send_all = [&] {
    for (int i = 0; i < side::depth; ++i)
      REQUIRE(h.d.send(1, h.other) == 0);
    for (int i = 0; i < side::depth; ++i)
      CHECK(h.d.s.completion().status == IBV_WC_SUCCESS);
  };
  send_all();
  send_all(); // after the first datagram that is lost, no other one waits
  other.kill();
  CHECK(other.wait() == -1);
  send_all();
  CHECK(state_of(*h.d.s.qp) == IBV_QPS_RTS);
}
