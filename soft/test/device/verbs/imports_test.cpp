// SPDX-License-Identifier: BSL-1.0
// Functions of libibverbs that know kernel devices only.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

using namespace soft::test;

TEST_CASE("Objects of the device cannot be imported") {
  const auto c = open_soft();
  REQUIRE(c);
  side s(*c);
  errno = 0;
  CHECK(ibv_import_pd(c.get(), 1) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  errno = 0;
  CHECK(ibv_import_mr(s.pd.get(), s.mr->handle) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  errno = 0;
  CHECK(ibv_import_dm(c.get(), 1) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  // Objects that were not imported stay as they are.
  ibv_unimport_mr(s.mr.get());
  ibv_unimport_pd(s.pd.get());
  ibv_dm memory{};
  memory.context = c.get();
  ibv_unimport_dm(&memory);
  CHECK(s.to(IBV_QPS_INIT) == 0);
  CHECK(s.receive(1) == 0);
}

TEST_CASE("A descriptor of no device cannot be imported as a device") {
  const auto c = open_soft();
  REQUIRE(c);
  CHECK(ibv_import_device(c->cmd_fd) == nullptr);
  CHECK(errno == EINVAL);
  // A character device: libibverbs compares it with all devices of a list.
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  CHECK(ibv_import_device(file) == nullptr);
  CHECK(errno == ENODEV);
  CHECK(close(file) == 0);
  int count = 0;
  ibv_device** const all = ibv_get_device_list(&count);
  REQUIRE(count >= 1);
  CHECK(all[0] == c->device);
  CHECK(all[count] == nullptr);
  ibv_free_device_list(all);
}

// libibverbs asks for the GID by ibv_query_gid, which is the device's.
TEST_CASE("libibverbs resolves hardware addresses for the device") {
  const auto c = open_soft();
  REQUIRE(c);
  ibv_ah_attr a{};
  a.port_num = 1;
  a.grh.sgid_index = loopback_index(*c);
  REQUIRE(ibv_query_gid(c.get(), 1, a.grh.sgid_index, &a.grh.dgid) == 0);
  std::uint8_t address[6];
  std::memset(address, 1, sizeof(address));
  std::uint16_t vlan = 0;
  REQUIRE(ibv_resolve_eth_l2_from_gid(c.get(), &a, address, &vlan) == 0);
  CHECK(vlan == 0xffff);
  const std::uint8_t of_loopback[6] = {};
  CHECK(std::memcmp(address, of_loopback, sizeof(address)) == 0);
}
