// SPDX-License-Identifier: BSL-1.0
// The GUID of soft0.
#include "support/fixture.hpp"
#include "support/other_machine.hpp"
#include "support/processes.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

using namespace soft::test;

namespace {

using owned_list = std::unique_ptr<ibv_device*, destroys<ibv_free_device_list>>;

std::string guid() {
  const owned_list all(ibv_get_device_list(nullptr));
  REQUIRE(all);
  return std::to_string(ibv_get_device_guid(*all));
}

const char* const parents = "SOFT_TEST_GUID";

} // namespace

TEST_CASE("The GUID of the device is that of its node and of its system image") {
  const auto c = open_soft();
  REQUIRE(c);
  const ibv_device_attr a = attributes(*c);
  CHECK(a.node_guid == ibv_get_device_guid(c->device));
  CHECK(a.sys_image_guid == a.node_guid);
  unsigned char first = 0;
  std::memcpy(&first, &a.node_guid, 1);
  CHECK((first & 3) == 2); // administered locally
}

TEST_CASE("child: the GUID of the parent", "[.child]") {
  REQUIRE(std::getenv(parents) != nullptr);
  CHECK(guid() == std::getenv(parents));
}

TEST_CASE("All processes of a host see one GUID") {
  child other("child: the GUID of the parent", {{parents, guid()}});
  CHECK(other.wait() == 0);
}

TEST_CASE("child: the GUID in another network namespace", "[.child]") {
  REQUIRE(std::getenv(parents) != nullptr);
  enter_namespace();
  CHECK(guid() != std::getenv(parents));
}

TEST_CASE("The GUID differs between hosts") {
  check_in_namespace("child: the GUID in another network namespace", {{parents, guid()}});
}
