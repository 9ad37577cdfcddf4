// SPDX-License-Identifier: BSL-1.0
// Latency and rate of the direct wire. Only lower bounds are asserted.
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <catch2/catch.hpp>

using namespace soft::test;
using namespace std::chrono_literals;

TEST_CASE("A message and its completions come no earlier than the latency after its post") {
  connected_pair p;
  with_settings set("latency=3ms");
  REQUIRE(p.b.receive(1) == 0);
  const auto posted = clock::now();
  REQUIRE(p.a.send(2) == 0);
  CHECK(p.b.completion().status == IBV_WC_SUCCESS);
  CHECK(clock::now() - posted >= 3ms);
  CHECK(p.a.completion().wr_id == 2);
}

TEST_CASE("A WRITE changes the peer's memory no earlier than the latency after its post") {
  connected_pair p;
  with_settings set("latency=3ms");
  p.a.memory[0] = std::byte{7};
  volatile const std::byte* const target = p.b.memory.data();
  const auto posted = clock::now();
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
  while (*target != std::byte{7})
    continue;
  CHECK(clock::now() - posted >= 3ms);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("A latency of a microsecond is kept as a lower bound, message by message") {
  connected_pair p;
  with_settings set("latency=1.2us");
  for (int i = 0; i < 2000; ++i) {
    REQUIRE(p.b.receive(1) == 0);
    const auto posted = clock::now();
    REQUIRE(p.a.send(2) == 0);
    REQUIRE(p.b.completion().status == IBV_WC_SUCCESS);
    const auto taken = clock::now() - posted;
    REQUIRE(taken >= 1200ns);
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("Each kind of request has the latency") {
  connected_pair p;
  with_settings set("latency=2ms");
  for (const ibv_wr_opcode o : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE}) {
    const auto posted = clock::now();
    REQUIRE(p.a.remote(1, o, p.b) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(clock::now() - posted >= 2ms);
  }
}

TEST_CASE("The wire of a queue pair carries one message after the other at its rate") {
  connected_pair p;
  with_settings set("rate=1Mb"); // 1000 bytes: 8 ms
  for (std::uint64_t i = 0; i < 3; ++i)
    REQUIRE(p.b.receive(i, 0, 1000) == 0);
  const auto posted = clock::now();
  for (std::uint64_t i = 0; i < 3; ++i)
    REQUIRE(p.a.send(i, 0, 1000) == 0);
  for (int i = 1; i <= 3; ++i) {
    CHECK(p.b.completion().status == IBV_WC_SUCCESS);
    CHECK(clock::now() - posted >= i * 8ms);
  }
}

TEST_CASE("The latency is in addition to the time that the rate takes") {
  connected_pair p;
  with_settings set("rate=1Mb,latency=5ms");
  const auto posted = clock::now();
  REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b, 1000) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(clock::now() - posted >= 13ms);
}

TEST_CASE("Requests complete in order while settings change") {
  connected_pair p;
  with_settings set("latency=100us");
  for (std::uint64_t i = 0; i < 60; ++i) {
    if (i == 20)
      set.replace("");
    if (i == 40)
      set.replace("latency=5us,rate=10Gb");
    REQUIRE(p.b.receive(i) == 0);
    REQUIRE(p.a.send(i) == 0);
  }
  for (std::uint64_t i = 0; i < 60; ++i) {
    REQUIRE(p.b.completion().wr_id == i);
    REQUIRE(p.a.completion().wr_id == i);
  }
}

TEST_CASE("A delayed completion comes no earlier, and those behind it wait") {
  connected_pair p;
  with_settings set("delay=send:2:20ms");
  for (std::uint64_t i = 1; i <= 3; ++i)
    REQUIRE(p.b.receive(i) == 0);
  const auto posted = clock::now();
  for (std::uint64_t i = 1; i <= 3; ++i)
    REQUIRE(p.a.send(i) == 0);
  CHECK(p.a.completion().wr_id == 1);
  CHECK(p.a.completion().wr_id == 2);
  CHECK(clock::now() - posted >= 20ms);
  CHECK(p.a.completion().wr_id == 3);
  CHECK(soft_get_faults() == 1);
}

TEST_CASE("A call is delayed") {
  const auto context = open_soft();
  with_settings set("delay=alloc_pd:1:10ms");
  const auto called = clock::now();
  const owned_pd pd(ibv_alloc_pd(context.get()));
  CHECK(pd);
  CHECK(clock::now() - called >= 10ms);
}

TEST_CASE("Jitter is a random part of its time") {
  connected_pair p;
  with_settings set("jitter=2ms");
  clock::duration longest{};
  for (int i = 0; i < 40; ++i) { // all below a quarter: once in 10^24 runs
    const auto posted = clock::now();
    REQUIRE(p.a.remote(1, IBV_WR_RDMA_WRITE, p.b) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    longest = std::max<clock::duration>(longest, clock::now() - posted);
  }
  CHECK(longest >= 500us);
}

TEST_CASE("The posting thread carries out requests if the settings say so") {
  connected_pair p;
  with_settings set("at_post=1");
  int at_once = 0;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(p.b.receive(1) == 0);
    REQUIRE(p.a.send(2) == 0);
    ibv_wc wc{};
    if (ibv_poll_cq(p.b.cq.get(), 1, &wc) == 1)
      ++at_once;
    else
      wc = p.b.completion();
    CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  }
  CHECK(at_once > 50);
}

// The shares of the jitter are 0.01, 0.98, 0.46, 0.21 and 0.77.
TEST_CASE("child: the jitter of five queue pairs", "[.child]") {
  const with_settings set("jitter=500ms,seed=3088");
  const auto context = open_soft();
  std::vector<std::unique_ptr<side>> from, to;
  for (int i = 0; i < 5; ++i) {
    from.push_back(std::make_unique<side>(*context));
    to.push_back(std::make_unique<side>(*context));
    connect(*from.back(), *to.back());
    REQUIRE(to.back()->receive(1) == 0);
  }
  for (const auto& s : from)
    REQUIRE(s->send(1) == 0);
  std::vector<int> order;
  while (order.size() != 5)
    for (int i = 0; i < 5; ++i)
      if (ibv_wc wc{}; ibv_poll_cq(to[static_cast<std::size_t>(i)]->cq.get(), 1, &wc) == 1)
        order.push_back(i);
  CHECK(order == std::vector<int>{0, 3, 2, 4, 1});
}

TEST_CASE("The jitter of a seed is the same in each process") {
  for (int i = 0; i < 2; ++i) {
    child other("child: the jitter of five queue pairs", {});
    std::string said;
    CHECK(other.wait(&said) == 0);
    INFO(said);
  }
}
