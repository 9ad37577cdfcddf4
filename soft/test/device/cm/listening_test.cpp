// SPDX-License-Identifier: BSL-1.0
// Which requests reach a listener of this process: rdma_listen(3).
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"
#include "support/other_machine.hpp"
#include "support/processes.hpp"
#include "support/raw_connection.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cerrno>
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

void set(rdma_cm_id* id, int option, int value) {
  REQUIRE(rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof(value)) == 0);
}
bool is_refused(rdma_cm_id* id, int option, int value) {
  errno = 0;
  return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof(value)) == -1 &&
         errno == EINVAL;
}

// A listener, and a connector in the same process. Whether the request reaches the listener.
// `late`: the listener's option is set when it is bound.
bool reaches(sockaddr_storage own, sockaddr_storage to, bool only_v6, bool late = false) {
  rdma_event_channel* const at = rdma_create_event_channel();
  REQUIRE(at != nullptr);
  rdma_cm_id* listener = nullptr;
  REQUIRE(rdma_create_id(at, &listener, nullptr, RDMA_PS_TCP) == 0);
  if (!late)
    set(listener, RDMA_OPTION_ID_AFONLY, only_v6);
  REQUIRE(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&own)) == 0);
  if (late)
    set(listener, RDMA_OPTION_ID_AFONLY, only_v6);
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
  CHECK_FALSE(reaches(address("::"), address("127.0.0.1"), true, true));
  CHECK(reaches(address("::"), address("::1"), true, true));
  CHECK(reaches(address("::1"), address("::1"), false));
  CHECK(reaches(address("0.0.0.0"), address("127.0.0.2"), false));
}

TEST_CASE("A listener that is to have no requests of IPv4 rejects those of other processes") {
  cm_end at;
  REQUIRE(rdma_create_id(at.channel, &at.id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_storage any = address("::");
  REQUIRE(rdma_bind_addr(at.id, reinterpret_cast<sockaddr*>(&any)) == 0);
  const bool only_v6 = GENERATE(false, true);
  set(at.id, RDMA_OPTION_ID_AFONLY, only_v6);
  REQUIRE(rdma_listen(at.id, 4) == 0);
  CHECK(is_refused(at.id, RDMA_OPTION_ID_AFONLY, 0));
  raw_peer peer(std::to_string(ntohs(rdma_get_src_port(at.id))));
  peer.send(request_of());
  if (only_v6) {
    CHECK(peer.start(true).rejected);
    CHECK_FALSE(at.has_event());
  } else {
    rdma_destroy_id(at.expect(RDMA_CM_EVENT_CONNECT_REQUEST));
  }
}

TEST_CASE("An id shares its port once it is bound, but not while it listens") {
  const rdma_port_space ps = GENERATE(RDMA_PS_TCP, RDMA_PS_UDP);
  CAPTURE(ps);
  cm_end first, second;
  for (cm_end* const e : {&first, &second})
    REQUIRE(rdma_create_id(e->channel, &e->id, nullptr, ps) == 0);
  sockaddr_in a = local_address(0);
  REQUIRE(rdma_bind_addr(first.id, reinterpret_cast<sockaddr*>(&a)) == 0);
  a.sin_port = rdma_get_src_port(first.id);
  set(second.id, RDMA_OPTION_ID_REUSEADDR, 1);
  CHECK(rdma_bind_addr(second.id, reinterpret_cast<sockaddr*>(&a)) == -1);
  CHECK(errno == EADDRINUSE);
  CHECK(is_refused(first.id, RDMA_OPTION_ID_REUSEADDR, 0));
  set(first.id, RDMA_OPTION_ID_REUSEADDR, 1);
  CHECK(rdma_bind_addr(second.id, reinterpret_cast<sockaddr*>(&a)) == 0);
  cm_end listener;
  REQUIRE(rdma_create_id(listener.channel, &listener.id, nullptr, ps) == 0);
  a.sin_port = 0;
  REQUIRE(rdma_bind_addr(listener.id, reinterpret_cast<sockaddr*>(&a)) == 0);
  REQUIRE(rdma_listen(listener.id, 1) == 0);
  CHECK(is_refused(listener.id, RDMA_OPTION_ID_REUSEADDR, 1));
}

// The connector gives up, so the request has an event besides the listener's.
TEST_CASE("A listener takes the events of its requests to another channel, or to its end") {
  cm_end other, at, from; // its channel outlives the listener
  REQUIRE(rdma_create_id(at.channel, &at.id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in to = local_address(0);
  REQUIRE(rdma_bind_addr(at.id, reinterpret_cast<sockaddr*>(&to)) == 0);
  REQUIRE(rdma_listen(at.id, 4) == 0);
  to.sin_port = rdma_get_src_port(at.id);
  from.resolve(to);
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
