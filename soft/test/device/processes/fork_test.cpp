// SPDX-License-Identifier: BSL-1.0
// fork(2). ThreadSanitizer allows a child no threads.
#include "support/fixture.hpp"
#include "support/processes.hpp"
#include "support/raw_connection.hpp"

#include "engine/sanitizers.hpp"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <rdma/rdma_verbs.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace soft::test;

#if !SOFT_THREAD_SANITIZER
namespace {

bool carries(connected_pair& p) {
  p.a.memory[0] = std::byte{42};
  return p.b.receive(1, 8) == 0 && p.a.send(2) == 0 && p.a.completion().status == IBV_WC_SUCCESS &&
         p.b.completion().status == IBV_WC_SUCCESS && p.b.memory[8] == std::byte{42};
}

// Runs `body` in a child after fork(2), and returns whether it was true.
template <class Body>
bool in_child(Body body) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    bool result = false;
    try {
      result = body();
    } catch (...) { // of REQUIRE
    }
    _exit(result ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

} // namespace

TEST_CASE("A child after fork(2) has a device of its own") {
  connected_pair p;
  REQUIRE(carries(p));
  CHECK(in_child([&] {
    connected_pair own;
    soft_resources r{};
    soft_get_resources(&r);
    return carries(own) && own.a.qp->qp_num != p.a.qp->qp_num && r.queue_pairs == 2;
  }));
  CHECK(carries(p));
}

TEST_CASE("A child after fork(2) connects to its parent by librdmacm") {
  connected_pair in_use;
  const auto [id, port] = listen();
  const endpoint listener(id);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    bool connected = false;
    try {
      endpoint e;
      resolve(e, port);
      connected = connect(e) == 0;
    } catch (...) {
    }
    _exit(connected ? 0 : 1);
  }
  endpoint e;
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  e.make_queue_pair();
  CHECK(accept(e) == 0);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("A child after fork(2) may destroy what its parent has made") {
  connected_pair p;
  CHECK(in_child([&] {
    p.a.qp.reset();
    p.a.mr.reset();
    connected_pair own;
    return carries(own);
  }));
  CHECK(carries(p));
}

TEST_CASE("A child after fork(2) cannot modify a queue pair of its parent") {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UD}) {
    const auto context = open_soft();
    side s(*context, {.type = type});
    REQUIRE(s.to(IBV_QPS_INIT) == 0);
    CHECK(in_child([&] { return s.to(IBV_QPS_RTR, 1) == ENODEV; }));
    CHECK(in_child([&] { // its own first queue pair makes its address
      const auto own_context = open_soft();
      side own(*own_context);
      return s.to(IBV_QPS_RTR, 1) == ENODEV && own.to(IBV_QPS_INIT) == 0;
    }));
    CHECK(s.to(IBV_QPS_RTR, 1) == 0);
  }
}

TEST_CASE("A child that destroys its parent's queue pair leaves the connection") {
  accepted c;
  c.accept();
  CHECK(in_child([&] {
    connected_pair own;
    return ibv_destroy_qp(c.e.id->qp) == 0 && carries(own);
  }));
  c.peer->send({.op = soft::iwarp::opcode::rdma_write}, {}); // the device may send from now on
  REQUIRE(rdma_post_send(c.e.id, nullptr, c.memory.data(), 8, c.mr.get(), IBV_SEND_SIGNALED) == 0);
  CHECK(c.peer->next().header.op == soft::iwarp::opcode::send);
}

TEST_CASE("A child leaves the sockets that its parent's threads serve") {
  connected_to_raw c(4);
  ibv_wc wc{};
  const auto poll_often = [&] {
    bool found = false;
    for (int i = 0; i < 64; ++i)
      found = ibv_poll_cq(c.s.cq.get(), 1, &wc) != 0 || found;
    return found;
  };
  CHECK(in_child([&] { return !poll_often(); }));
  CHECK_FALSE(poll_often());
  REQUIRE(c.s.receive(1) == 0);
  CHECK(in_child([&] {
    c.peer->send({.op = soft::iwarp::opcode::send, .length = 1}, std::array<std::byte, 1>{});
    const bool found = poll_often();
    c.s.qp.reset();
    c.s.cq.reset();
    c.s.channel.reset();
    return !found;
  }));
  CHECK(c.s.completion().wr_id == 1);
  for (const std::byte value : {std::byte{1}, std::byte{2}, std::byte{3}}) { // for the engine
    c.peer->send({.op = soft::iwarp::opcode::rdma_write,
                  .length = 1,
                  .stag = c.s.mr->rkey,
                  .tagged_offset = reinterpret_cast<std::uintptr_t>(c.s.memory.data())},
                 std::span(&value, 1));
    wait_for(c.s.memory[0], value);
  }
}

// The fork comes in the middle of a change at times. A child that waits for ever is killed.
TEST_CASE("A child after fork(2) has settings, although a thread of its parent was changing them") {
  const with_settings set("seed=1");
  std::atomic<bool> ends{false};
  std::thread changing([&] {
    for (int i = 0; i != 20'000 && !ends; ++i) // each stays in memory
      soft_set("seed=1");
  });
  bool all = true;
  for (int i = 0; i < 30 && all; ++i)
    all = in_child([&] {
      alarm(20);
      return open_soft() != nullptr && soft_set("seed=2") == 0;
    });
  ends = true;
  changing.join();
  CHECK(all);
}
#endif
