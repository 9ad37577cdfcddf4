// SPDX-License-Identifier: BSL-1.0
// A link that carries nothing, for a time or for ever.
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace soft::test;
using namespace std::chrono_literals;

namespace {

// Two sides whose requests end without an answer after 4.3 s.
struct patient_pair {
  explicit patient_pair(const side::options& o = {}) : a(*context, o), b(*context, o) {
    connect(a, b, 19);
  }
  owned_context context = open_soft();
  side a, b;
};

} // namespace

TEST_CASE("A link that is down for less time than the retries take goes on where it was") {
  patient_pair p({.shared = GENERATE(false, true)});
  with_settings set("flap=send:2:50ms");
  for (std::uint64_t i = 1; i <= 3; ++i)
    REQUIRE(p.b.receive(i) == 0);
  const auto posted = clock::now();
  for (std::uint64_t i = 1; i <= 3; ++i)
    REQUIRE(p.a.send(i) == 0);
  CHECK(p.a.completion().wr_id == 1);
  for (std::uint64_t i = 2; i <= 3; ++i) {
    const ibv_wc sent = p.a.completion();
    CHECK(sent.wr_id == i);
    CHECK(sent.status == IBV_WC_SUCCESS);
    CHECK(clock::now() - posted >= 50ms);
  }
  CHECK(soft_get_faults() == 1);
}

TEST_CASE("Both sides of a link that is down wait, and requests of all kinds") {
  for (const ibv_wr_opcode o : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    patient_pair p;
    const auto begun = clock::now();
    with_settings set("flap=now:20ms");
    REQUIRE(p.a.remote(1, o, p.b) == 0);
    REQUIRE(p.b.remote(2, o, p.a) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(p.b.completion().status == IBV_WC_SUCCESS);
    CHECK(clock::now() - begun >= 20ms);
  }
}

TEST_CASE("Requests of a link that is down for longer than their retries end after their timeout") {
  connected_pair p;
  const auto begun = clock::now();
  with_settings set("flap=now:600s");
  REQUIRE(p.a.receive(9) == 0);
  REQUIRE(p.a.send(1) == 0);
  CHECK(p.a.completion().status == IBV_WC_RETRY_EXC_ERR);
  CHECK(clock::now() - begun >= std::chrono::nanoseconds(2 * 4096 * 256));
  CHECK(p.a.completion().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(p.b.is_quiet());
  REQUIRE(p.b.send(3) == 0);
  CHECK(p.b.completion().status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("A request that waits for a receive ends when the link is down for longer") {
  connected_pair p;
  with_settings set("");
  REQUIRE(p.a.send(1) == 0); // receiver not ready, without limit
  set.replace("flap=now:600s");
  CHECK(p.a.completion().status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("A queue pair that is reset after its link was down has a new link") {
  connected_pair p;
  with_settings set("flap=now:600s");
  REQUIRE(p.a.to(IBV_QPS_RESET) == 0);
  REQUIRE(p.b.to(IBV_QPS_RESET) == 0);
  connect(p.a, p.b);
  REQUIRE(p.a.remote(2, IBV_WR_RDMA_WRITE, p.b) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("A disconnect does not reach the peer by a link that is down, nor of a removed device") {
  const char* const silent =
      GENERATE("flap=now:600s", "drop=now", "mlx5,ids_last=1,removal=600s,event=now:device_fatal");
  INFO(silent);
  cm_pair p;
  with_settings set(silent);
  CHECK(rdma_disconnect(p.client.id) == 0);
  p.client.expect(RDMA_CM_EVENT_DISCONNECTED);
  CHECK_FALSE(p.server.has_event());
  CHECK(rdma_disconnect(p.server.id) == 0);
  p.server.expect(RDMA_CM_EVENT_DISCONNECTED);
  set.replace("mlx5,event=now:device_fatal"); // ends a removal that has begun
  setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
  for (cm_end* e : {&p.client, &p.server})
    rdma_destroy_qp(e->id);
  unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY");
}
