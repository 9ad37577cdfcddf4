// SPDX-License-Identifier: BSL-1.0
// WRITEs whose bytes are in the peer's memory some time after their completion. With an hour
// nothing but an event places them.
#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

using namespace soft::test;
using namespace std::chrono_literals;

namespace {

constexpr std::array<std::byte, 8> ones{std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1},
                                        std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}};
constexpr std::array<std::byte, 8> nothing{};

void fill(side& s, std::byte value) { std::fill_n(s.memory.begin(), 8, value); }

// Writes eight bytes of this value, which `s` uses again at once.
void write(side& s, const side& peer, std::byte value = std::byte{1}) {
  fill(s, value);
  REQUIRE(s.remote(1, IBV_WR_RDMA_WRITE, peer) == 0);
  REQUIRE(s.completion().status == IBV_WC_SUCCESS);
  fill(s, std::byte{0});
}

// Sends from `a`, and receives behind what is looked at.
void send(side& a, side& b) {
  REQUIRE(b.receive(2, 1024) == 0);
  REQUIRE(a.send(2, 1024) == 0);
  REQUIRE(b.completion().status == IBV_WC_SUCCESS);
  REQUIRE(a.completion().status == IBV_WC_SUCCESS);
}

} // namespace

TEST_CASE(
    "A WRITE completes before its bytes are in the peer's memory, which the next SEND finds") {
  const with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b);
  CHECK(p.b.bytes_at(0) == nothing);
  send(p.a, p.b);
  CHECK(p.b.bytes_at(0) == ones);
}

TEST_CASE("A late WRITE comes after its time, and no request is needed") {
  const with_settings set("late_placement=3ms");
  connected_pair p;
  const auto posted = clock::now();
  write(p.a, p.b);
  wait_for(p.b.memory[0], std::byte{1});
  CHECK(clock::now() - posted >= 3ms);
  write(p.a, p.b, std::byte{2}); // the time is set again
  wait_for(p.b.memory[0], std::byte{2});
}

TEST_CASE("READs, atomics and immediate data find the WRITEs before them") {
  const with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b);
  REQUIRE(p.a.remote(2, IBV_WR_RDMA_READ, p.b) == 0);
  REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.bytes_at(0) == ones);
  write(p.a, p.b, std::byte{2});
  REQUIRE(p.a.remote(3, IBV_WR_ATOMIC_FETCH_AND_ADD, p.b) == 0);
  REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.bytes_at(0)[0] == std::byte{2});
  write(p.a, p.b, std::byte{3});
  REQUIRE(p.b.receive(4, 1024) == 0);
  fill(p.a, std::byte{4});
  REQUIRE(p.a.remote(4, IBV_WR_RDMA_WRITE_WITH_IMM, p.b, 4) == 0);
  REQUIRE(p.b.completion().opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(p.b.bytes_at(0)[3] == std::byte{4});
  CHECK(p.b.bytes_at(0)[4] == std::byte{3});
}

TEST_CASE("Late WRITEs come in their order, also if the setting ends") {
  with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b, std::byte{1});
  write(p.a, p.b, std::byte{2});
  send(p.a, p.b);
  CHECK(p.b.memory[0] == std::byte{2});
  write(p.a, p.b, std::byte{3});
  set.replace("");
  write(p.a, p.b, std::byte{4});
  CHECK(p.b.memory[0] == std::byte{4});
  send(p.a, p.b);
  CHECK(p.b.memory[0] == std::byte{4});
}

TEST_CASE("Late WRITEs take a limited amount of memory") {
  const with_settings set("late_placement=3600s");
  connected_pair p;
  constexpr std::uint32_t bytes = 4096;
  for (unsigned i = 0; i != (4u << 20) / bytes; ++i) {
    fill(p.a, std::byte{1});
    REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b, bytes) == 0);
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  }
  CHECK(p.b.bytes_at(0) == nothing);
  write(p.a, p.b, std::byte{2});
  CHECK(p.b.memory[0] == std::byte{2});
}

TEST_CASE(
    "The peer checks its memory when a late WRITE comes, and the next request gets the error") {
  const with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b);
  p.b.mr.reset();
  REQUIRE(p.a.send(2) == 0);
  CHECK(p.a.completion().status == IBV_WC_REM_ACCESS_ERR);
  CHECK(next_event(*p.context) == IBV_EVENT_QP_ACCESS_ERR);
  CHECK(p.b.bytes_at(0) == nothing);
  CHECK(state_of(*p.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(*p.b.qp) == IBV_QPS_ERR);
}

TEST_CASE("A late WRITE to memory that is deregistered until its time ends both queue pairs") {
  const with_settings set("late_placement=20ms");
  connected_pair p;
  REQUIRE(p.a.receive(7) == 0);
  write(p.a, p.b);
  p.b.mr.reset();
  const ibv_wc flushed = p.a.completion();
  CHECK(flushed.wr_id == 7);
  CHECK(flushed.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(next_event(*p.context) == IBV_EVENT_QP_ACCESS_ERR);
  CHECK(state_of(*p.b.qp) == IBV_QPS_ERR);
  CHECK(p.b.bytes_at(0) == nothing);
}

TEST_CASE("Late WRITEs come before the end of their queue pair") {
  const with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b);
  SECTION("the error state") {
    REQUIRE(p.a.to(IBV_QPS_ERR) == 0);
    CHECK(p.b.bytes_at(0) == ones);
  }
  SECTION("reset") {
    REQUIRE(p.a.to(IBV_QPS_RESET) == 0);
    CHECK(p.b.bytes_at(0) == ones);
  }
  SECTION("destroyed") {
    p.a.qp.reset();
    CHECK(p.b.bytes_at(0) == ones);
  }
  SECTION("to memory that is deregistered") {
    p.b.mr.reset();
    p.a.qp.reset();
    CHECK(next_event(*p.context) == IBV_EVENT_QP_ACCESS_ERR);
    CHECK(p.b.bytes_at(0) == nothing);
    CHECK(state_of(*p.b.qp) == IBV_QPS_ERR);
  }
}

TEST_CASE("Late WRITEs do not come to a queue pair that has ended") {
  const with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b);
  SECTION("the error state") { REQUIRE(p.b.to(IBV_QPS_ERR) == 0); }
  SECTION("reset") { REQUIRE(p.b.to(IBV_QPS_RESET) == 0); }
  SECTION("destroyed") { p.b.qp.reset(); }
  REQUIRE(p.a.to(IBV_QPS_ERR) == 0);
  CHECK(p.b.bytes_at(0) == nothing);
  CHECK_FALSE(has_event(*p.context));
}

TEST_CASE("Late WRITEs are lost with their link") {
  with_settings set("late_placement=3600s");
  connected_pair p;
  write(p.a, p.b);
  set.replace(GENERATE("late_placement=3600s,drop=now", "late_placement=3600s,flap=now:600s"));
  REQUIRE(p.a.to(IBV_QPS_ERR) == 0);
  CHECK(p.b.bytes_at(0) == nothing);
}

TEST_CASE("Late WRITEs wait for a link that is down") {
  const with_settings set("late_placement=1ms,flap=write:2:30ms");
  const auto context = open_soft();
  side a(*context), b(*context);
  connect(a, b, 20); // seconds
  fill(a, std::byte{1});
  ibv_sge e = a.element(0, 8);
  ibv_send_wr first = side::request(1, IBV_WR_RDMA_WRITE, e), second = first, *bad = nullptr;
  first.wr.rdma = {reinterpret_cast<std::uintptr_t>(b.memory.data()), b.mr->rkey};
  second.wr.rdma = {first.wr.rdma.remote_addr + 8, b.mr->rkey};
  first.next = &second; // the link is down before the time of the first
  const auto posted = clock::now();
  REQUIRE(ibv_post_send(a.qp.get(), &first, &bad) == 0);
  wait_for(b.memory[0], std::byte{1});
  CHECK(clock::now() - posted >= 30ms);
  wait_for(b.memory[8], std::byte{1});
}
