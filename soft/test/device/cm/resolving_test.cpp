// SPDX-License-Identifier: BSL-1.0
// Addresses that cannot be resolved: rdma_resolve_addr(3).
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"
#include "support/other_machine.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cerrno>
#include <sched.h>

using namespace soft::test;

namespace {

sockaddr* base(sockaddr_in& a) { return reinterpret_cast<sockaddr*>(&a); }

// 198.51.100.0/24 is no network (RFC 5737).
sockaddr_in elsewhere() {
  sockaddr_in a = local_address(7);
  REQUIRE(inet_pton(AF_INET, "198.51.100.1", &a.sin_addr) == 1);
  return a;
}

} // namespace

TEST_CASE("child: an address without a route", "[.child]") {
  enter_namespace(); // whose right this process has now
  REQUIRE(unshare(CLONE_NEWNET) == 0);
  set_up_loopback();
  sockaddr_in source = local_address(0), to = elsewhere(), here = local_address(7);
  for (const bool has_source : {false, true}) {
    cm_end end;
    REQUIRE(rdma_create_id(end.channel, &end.id, nullptr, RDMA_PS_TCP) == 0);
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 3; ++i) {
      errno = 0;
      CHECK(rdma_resolve_addr(end.id, has_source ? base(source) : nullptr, base(to), 1000) == -1);
      CHECK(errno == ENETUNREACH);
      CHECK_FALSE(end.has_event());
      CHECK(open_descriptors() == before + 1); // the port
    }
    CHECK(rdma_get_src_port(end.id) != 0);
    CHECK(rdma_bind_addr(end.id, base(source)) == -1);
    CHECK(errno == EINVAL); // bound
    CHECK(rdma_resolve_addr(end.id, nullptr, base(here), 1000) == 0);
    end.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  }
}

TEST_CASE("An address without a route is an error of the call, and the id stays bound") {
  check_in_namespace("child: an address without a route");
}

TEST_CASE("An address of another family than the id's is an error of the call") {
  cm_end end;
  REQUIRE(rdma_create_id(end.channel, &end.id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in source = local_address(0);
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_addr = in6addr_loopback;
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    errno = 0;
    CHECK(rdma_resolve_addr(end.id, base(source), reinterpret_cast<sockaddr*>(&to), 1000) == -1);
    CHECK(errno == EINVAL);
    CHECK(open_descriptors() == before + 1);
  }
  CHECK_FALSE(end.has_event());
}

TEST_CASE("An id whose device is lost stays bound, and keeps one port") {
  cm_end end;
  REQUIRE(rdma_create_id(end.channel, &end.id, nullptr, RDMA_PS_TCP) == 0);
  with_settings set("mlx5,removal_notice=600s,event=now:device_fatal");
  sockaddr_in source = local_address(0), to = local_address(7);
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rdma_resolve_addr(end.id, base(source), base(to), 1000) == 0);
    end.expect(RDMA_CM_EVENT_ADDR_ERROR);
    CHECK(open_descriptors() == before + 1);
  }
  set.replace("mlx5,event=now:device_fatal");
}
