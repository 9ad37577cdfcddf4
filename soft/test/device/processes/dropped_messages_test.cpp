// SPDX-License-Identifier: BSL-1.0
// Messages of a peer behind the one with which the queue pair has failed, or its link was dropped.
#include "support/fixture.hpp"
#include "support/raw_connection.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <sys/socket.h>
#include <vector>

using namespace soft::test;
using soft::iwarp::opcode;

namespace {

constexpr std::uint64_t messages = 5;

struct receiver : connected_to_raw {
  receiver() : connected_to_raw(4) {
    for (std::uint64_t i = 1; i <= messages; ++i)
      REQUIRE(s.receive(i) == 0);
  }
  // All messages at once, so that the device reads them together.
  void send_all() {
    std::vector<std::byte> all;
    for (std::uint64_t i = 1; i <= messages; ++i)
      append(all, {.op = opcode::send, .length = 8}, std::vector<std::byte>(8));
    peer->send(all);
  }
  void append(std::vector<std::byte>& to, const soft::iwarp::outgoing_message& m,
              const std::vector<std::byte>& payload) {
    const auto bytes = raw_peer::fpdu(peer->writer, m, payload);
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
  void expect(std::uint64_t id, ibv_wc_status status) {
    const ibv_wc wc = s.completion();
    CHECK(wc.wr_id == id);
    CHECK(wc.status == status);
  }
  void expect_flushed_from(std::uint64_t first) {
    for (std::uint64_t i = first; i <= messages; ++i)
      expect(i, IBV_WC_WR_FLUSH_ERR);
  }
};

} // namespace

TEST_CASE("Messages of another process behind a receive that fails do not arrive") {
  receiver r;
  with_settings set("fail=recv:2:loc_prot");
  r.send_all();
  r.expect(1, IBV_WC_SUCCESS);
  r.expect(2, IBV_WC_LOC_PROT_ERR);
  r.expect_flushed_from(3);
  CHECK(soft_get_faults() == 1);
  CHECK(r.peer->at_end()); // in an orderly way, without a Terminate message
}

TEST_CASE("Behind a receive that drops the link, nothing comes from another process") {
  receiver r;
  with_settings set("drop=recv:2");
  r.send_all();
  r.expect(1, IBV_WC_SUCCESS);
  r.expect(2, IBV_WC_SUCCESS);
  CHECK(state_of(*r.s.qp) == IBV_QPS_RTS); // and the engine has read all messages
  CHECK(r.s.is_quiet());
  std::byte b{};
  CHECK(::recv(r.peer->socket(), &b, 1, MSG_DONTWAIT) == -1);
  CHECK(errno == EAGAIN);
  REQUIRE(r.s.send(9) == 0);
  r.expect(9, IBV_WC_RETRY_EXC_ERR);
  r.expect_flushed_from(3);
}

// The polls serve the socket before the engine's turn, in which it closes the connection.
TEST_CASE("A queue pair in the error state takes nothing from another process") {
  for (int i = 0; i < 50; ++i) {
    receiver r;
    for (int n = 0; n < 64; ++n)
      REQUIRE(r.s.is_quiet());
    const std::byte before = value_now(r.s.memory[0]), other = before ^ std::byte{1};
    std::vector<std::byte> all;
    r.append(all,
             {.op = opcode::rdma_write,
              .length = 1,
              .stag = r.s.mr->rkey,
              .tagged_offset = reinterpret_cast<std::uintptr_t>(r.s.memory.data())},
             {other});
    r.append(all, {.op = opcode::send, .length = 1}, {other});
    REQUIRE(r.s.to(IBV_QPS_ERR) == 0);
    (void)::send(r.peer->socket(), all.data(), all.size(), MSG_NOSIGNAL); // or it is closed
    r.expect_flushed_from(1);
    REQUIRE(is_now(r.s.memory[0], before));
  }
}
