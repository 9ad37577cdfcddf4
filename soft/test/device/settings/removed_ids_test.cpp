// SPDX-License-Identifier: BSL-1.0
// The ids of librdmacm of a device that is removed.
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <rdma/rdma_cma.h>
#include <thread>
#include <utility>

using namespace soft::test;

namespace {

// While it lives, the objects of a removed device can be destroyed (ibv_open_device(3)).
struct destroying_works {
  destroying_works() { setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1); }
  ~destroying_works() { unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY"); }
};

void make_id(cm_end& of) { REQUIRE(rdma_create_id(of.channel, &of.id, nullptr, RDMA_PS_TCP) == 0); }

// Listens at 127.0.0.1, or at all addresses. Returns the address to connect to.
sockaddr_in listen(cm_end& at, bool everywhere) {
  make_id(at);
  sockaddr_in a = local_address(0);
  sockaddr_in bound = a;
  if (everywhere)
    bound.sin_addr.s_addr = INADDR_ANY;
  REQUIRE(rdma_bind_addr(at.id, reinterpret_cast<sockaddr*>(&bound)) == 0);
  REQUIRE(rdma_listen(at.id, 4) == 0);
  a.sin_port = rdma_get_src_port(at.id);
  return a;
}

void request(cm_end& from, sockaddr_in to) {
  from.resolve(to);
  rdma_conn_param p{};
  REQUIRE(rdma_connect(from.id, &p) == 0);
}

bool works(ibv_context& c) { return owned_pd(ibv_alloc_pd(&c)) != nullptr; }
bool has_event(const ibv_context& c) {
  pollfd p{c.async_fd, POLLIN, 0};
  return poll(&p, 1, 0) != 0;
}

} // namespace

TEST_CASE("The ids of a device learn of its removal before its functions fail") {
  const auto context = open_soft();
  cm_pair p;
  cm_end listener, everywhere, unbound;
  listen(listener, false);
  listen(everywhere, true);
  make_id(unbound);
  with_settings set("mlx5,removal_notice=600s,event=now:device_fatal");
  for (cm_end* const each : {&p.client, &p.server, &listener})
    CHECK(each->expect(RDMA_CM_EVENT_DEVICE_REMOVAL) == each->id);
  CHECK_FALSE(everywhere.has_event());
  CHECK_FALSE(unbound.has_event());
  CHECK(works(*context));
  CHECK_FALSE(has_event(*context));
  const destroying_works allowed;
  SECTION("the kernel has no such id any more") {
    CHECK(rdma_disconnect(p.client.id) == -1);
    CHECK(errno == ENXIO);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    int mask = 0;
    CHECK(rdma_init_qp_attr(p.server.id, &attr, &mask) == -1);
    CHECK(errno == ENXIO);
    CHECK(rdma_listen(listener.id, 1) == -1);
    CHECK(errno == ENXIO);
    const cm_end other;
    CHECK(rdma_migrate_id(p.client.id, other.channel) == -1);
    CHECK(errno == ENXIO);
    CHECK_FALSE(p.server.has_event());
  }
  SECTION("no id comes to the device any more") {
    sockaddr_in at = local_address(rdma_get_src_port(everywhere.id));
    REQUIRE(rdma_resolve_addr(unbound.id, nullptr, reinterpret_cast<sockaddr*>(&at), 1000) == 0);
    unbound.expect(RDMA_CM_EVENT_ADDR_ERROR);
    cm_end late;
    make_id(late);
    at.sin_port = 0;
    CHECK(rdma_bind_addr(late.id, reinterpret_cast<sockaddr*>(&at)) == -1);
    CHECK(errno == ENODEV);
  }
  set.replace("mlx5,event=now:device_fatal");
  CHECK_FALSE(works(*context));
  CHECK(has_event(*context));
  for (const cm_end* const each : {&p.client, &p.server, &listener, &everywhere, &unbound})
    CHECK_FALSE(each->has_event());
  for (cm_end* const each : {&p.client, &p.server})
    rdma_destroy_qp(each->id);
}

TEST_CASE("A request that waits for its answer ends with its device") {
  cm_end listener, client, unknown;
  const sockaddr_in at = listen(listener, GENERATE(false, true));
  const bool bound = rdma_get_local_addr(listener.id)->sa_family == AF_INET && listener.id->verbs;
  request(client, at);
  rdma_cm_id* const given = listener.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  request(unknown, at); // the program does not take this one
  with_settings set("mlx5,removal_notice=600s,event=now:device_fatal");
  client.expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
  unknown.expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
  rdma_conn_param p{};
  CHECK(rdma_accept(given, &p) == -1);
  CHECK(errno == ENXIO);
  // librdmacm does not find the other request in the kernel, and drops its event.
  if (bound)
    CHECK(listener.expect(RDMA_CM_EVENT_DEVICE_REMOVAL) == listener.id);
  const destroying_works allowed;
  set.replace("mlx5,event=now:device_fatal");
  rdma_destroy_id(given);
  CHECK_FALSE(client.has_event());
  CHECK_FALSE(unknown.has_event());
}

TEST_CASE("The ids may learn of the removal after the device") {
  const auto context = open_soft();
  cm_pair p;
  with_settings set("mlx5,ids_last=1,removal=600s,event=now:device_fatal");
  CHECK_FALSE(works(*context));
  CHECK_FALSE(p.client.has_event());
  set.replace("mlx5,ids_last=1,event=now:device_fatal");
  CHECK(has_event(*context));
  p.client.expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
  p.server.expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
  CHECK(rdma_disconnect(p.client.id) == -1);
  CHECK(errno == ENXIO);
  const destroying_works allowed;
  for (cm_end* const each : {&p.client, &p.server})
    rdma_destroy_qp(each->id);
}

// The destruction waits for the acknowledgement of an event that the program holds.
TEST_CASE("An id that is being destroyed gets no event of the removal") {
  const destroying_works allowed;
  cm_end listener, client;
  const sockaddr_in at = listen(listener, false);
  request(client, at);
  rdma_cm_id* const given = listener.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_conn_param p{};
  REQUIRE(rdma_accept(given, &p) == 0);
  std::jthread destroying;
  std::unique_ptr<rdma_cm_event, destroys<rdma_ack_cm_event>> held;
  {
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(client.channel, &e) == 0);
    held.reset(e);
  }
  destroying = std::jthread([id = std::exchange(client.id, nullptr)] { rdma_destroy_id(id); });
  listener.expect(RDMA_CM_EVENT_REJECTED); // tells that the destruction has begun
  const with_settings set(std::string("mlx5,") + GENERATE("", "ids_last=1,") +
                          "event=now:device_fatal");
  CHECK_FALSE(client.has_event());
  held.reset();
  destroying.join();
  CHECK_FALSE(client.has_event());
  rdma_destroy_id(given);
}
