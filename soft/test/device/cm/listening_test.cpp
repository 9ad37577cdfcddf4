// SPDX-License-Identifier: BSL-1.0
// Which requests reach a listener of this process: rdma_listen(3).
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"
#include "support/other_machine.hpp"
#include "support/processes.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <utility>

using namespace soft::test;

namespace {

// The first request for the listener, or nullptr.
rdma_cm_id* request_at(rdma_event_channel* c) {
  fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
  rdma_cm_event* e = nullptr;
  if (rdma_get_cm_event(c, &e) != 0)
    return nullptr;
  rdma_cm_id* const id = e->id;
  CHECK(e->event == RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_ack_cm_event(e);
  return id;
}

// A listener, and a connector in the same process. Whether the request reaches the listener.
bool reaches(sockaddr_storage own, sockaddr_storage to, bool only_v6) {
  rdma_event_channel* const at = rdma_create_event_channel();
  REQUIRE(at != nullptr);
  rdma_cm_id* listener = nullptr;
  REQUIRE(rdma_create_id(at, &listener, nullptr, RDMA_PS_TCP) == 0);
  int on = only_v6;
  REQUIRE(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == 0);
  REQUIRE(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&own)) == 0);
  REQUIRE(rdma_listen(listener, 4) == 0);
  auto& port = to.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(to).sin_port
                                       : reinterpret_cast<sockaddr_in6&>(to).sin6_port;
  port = rdma_get_src_port(listener);

  rdma_event_channel* const from = rdma_create_event_channel();
  REQUIRE(from != nullptr);
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(from, &id, nullptr, RDMA_PS_TCP) == 0);
  const auto expect = [&](rdma_cm_event_type what) {
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(from, &e) == 0);
    const auto got = e->event;
    INFO(e->status);
    rdma_ack_cm_event(e);
    REQUIRE(got == what);
  };
  REQUIRE(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000) == 0);
  expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  REQUIRE(rdma_resolve_route(id, 1000) == 0);
  expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_queue_pair(id, IBV_QPT_RC, 4);
  rdma_conn_param p{};
  REQUIRE(rdma_connect(id, &p) == 0);
  // Within a process the request is there when the call returns.
  rdma_cm_id* const request = request_at(at);
  if (request != nullptr)
    rdma_destroy_id(request);
  rdma_destroy_qp(id);
  rdma_destroy_id(id);
  rdma_destroy_event_channel(from);
  rdma_destroy_id(listener);
  rdma_destroy_event_channel(at);
  return request != nullptr;
}

sockaddr_storage address(const char* text) {
  sockaddr_storage a{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(a);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(a);
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    a.ss_family = AF_INET;
  } else {
    REQUIRE(inet_pton(AF_INET6, text, &v6.sin6_addr) == 1);
    a.ss_family = AF_INET6;
  }
  return a;
}

} // namespace

TEST_CASE("child: a request to another machine", "[.child]") {
  enter_namespace();
  // 198.51.100.0/24 is no network (RFC 5737).
  CHECK_FALSE(reaches(address("0.0.0.0"), address("198.51.100.1"), false));
  CHECK(reaches(address("0.0.0.0"), address("127.0.0.1"), false));
}

TEST_CASE("A request to another machine does not reach a listener at any address") {
  check_in_namespace("child: a request to another machine");
}

TEST_CASE("A listener at any address of IPv6 gets requests of IPv4 unless it is to have none") {
  CHECK(reaches(address("::"), address("127.0.0.1"), false));
  CHECK_FALSE(reaches(address("::"), address("127.0.0.1"), true));
  CHECK(reaches(address("::1"), address("::1"), false));
  CHECK(reaches(address("0.0.0.0"), address("127.0.0.2"), false));
}

// The connector gives up, so the request has an event besides the listener's.
TEST_CASE("A listener takes the events of its requests to another channel, or to its end") {
  cm_end other, at, from; // its channel outlives the listener
  REQUIRE(rdma_create_id(at.channel, &at.id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in to = local_address(0);
  REQUIRE(rdma_bind_addr(at.id, reinterpret_cast<sockaddr*>(&to)) == 0);
  REQUIRE(rdma_listen(at.id, 4) == 0);
  to.sin_port = rdma_get_src_port(at.id);
  REQUIRE(rdma_create_id(from.channel, &from.id, nullptr, RDMA_PS_TCP) == 0);
  REQUIRE(rdma_resolve_addr(from.id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000) == 0);
  from.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  REQUIRE(rdma_resolve_route(from.id, 1000) == 0);
  from.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  rdma_conn_param p{};
  REQUIRE(rdma_connect(from.id, &p) == 0);
  REQUIRE(rdma_destroy_id(std::exchange(from.id, nullptr)) == 0);
  REQUIRE(at.has_event());
  SECTION("to another channel") {
    REQUIRE(rdma_migrate_id(at.id, other.channel) == 0);
    REQUIRE_FALSE(at.has_event());
    rdma_cm_id* const request = other.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    REQUIRE(other.has_event());
    CHECK(other.expect(RDMA_CM_EVENT_REJECTED) == request);
    rdma_destroy_id(request);
  }
  SECTION("to its end") {
    rdma_destroy_id(std::exchange(at.id, nullptr));
    CHECK_FALSE(at.has_event());
  }
}
