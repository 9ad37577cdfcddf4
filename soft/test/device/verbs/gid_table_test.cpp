// SPDX-License-Identifier: BSL-1.0
// The GID table of a machine whose addresses come and go.
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <map>
#include <memory>
#include <net/if.h>
#include <string>
#include <vector>

using namespace soft::test;

namespace {

// The machine's addresses in a test; empty: its own.
std::vector<std::string> addresses;

struct made_addresses {
  explicit made_addresses(const std::vector<std::string>& all)
      : entries(all.size()), sockets(all.size()) {
    for (std::size_t i = 0; i != all.size(); ++i) {
      sockets[i].sin_family = AF_INET;
      inet_pton(AF_INET, all[i].c_str(), &sockets[i].sin_addr);
      entries[i].ifa_name = name;
      entries[i].ifa_flags = IFF_UP;
      entries[i].ifa_addr = reinterpret_cast<sockaddr*>(&sockets[i]);
      entries[i].ifa_next = i + 1 == all.size() ? nullptr : &entries[i + 1];
    }
  }
  char name[3] = "lo";
  std::vector<ifaddrs> entries;
  std::vector<sockaddr_in> sockets;
};
std::vector<std::unique_ptr<made_addresses>> made;

std::string numbered(int i) {
  return "10.0." + std::to_string(i / 200) + "." + std::to_string(1 + i % 200);
}

constexpr int places = 256;

// The addresses in the device's table, with their indices.
std::map<std::string, int> table(ibv_context& c) {
  std::vector<ibv_gid_entry> all(2 * places);
  const auto n = ibv_query_gid_table(&c, all.data(), all.size(), 0);
  REQUIRE(n >= 0);
  std::map<std::string, int> result;
  for (std::size_t i = 0; i != static_cast<std::size_t>(n); ++i) {
    char text[INET_ADDRSTRLEN];
    REQUIRE(inet_ntop(AF_INET, all[i].gid.raw + 12, text, sizeof(text)) != nullptr);
    result[text] = static_cast<int>(all[i].gid_index);
  }
  return result;
}

} // namespace

// In place of the C library's, for the device, too.
extern "C" int getifaddrs(ifaddrs** to) {
  if (addresses.empty())
    return reinterpret_cast<decltype(&getifaddrs)>(dlsym(RTLD_NEXT, "getifaddrs"))(to);
  *to = made.emplace_back(std::make_unique<made_addresses>(addresses))->entries.data();
  return 0;
}
extern "C" void freeifaddrs(ifaddrs* all) {
  if (std::erase_if(made, [&](const auto& m) { return m->entries.data() == all; }) == 0)
    reinterpret_cast<decltype(&freeifaddrs)>(dlsym(RTLD_NEXT, "freeifaddrs"))(all);
}

TEST_CASE("child: more addresses than the table has places", "[.child]") {
  addresses = {"127.0.0.1"};
  const auto c = open_soft();
  REQUIRE(c);
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(c.get(), 1, &port) == 0);
  CHECK(port.gid_tbl_len == places);
  const auto first = table(*c);
  REQUIRE(first.size() == 1);
  const int loopback = first.at("127.0.0.1");
  // One after the other.
  for (int i = 0; i < places + 44; ++i) {
    addresses = {"127.0.0.1", numbered(i)};
    auto now = table(*c);
    REQUIRE(now.count(numbered(i)) == 1);
    REQUIRE(now[numbered(i)] < places);
    REQUIRE(now["127.0.0.1"] == loopback);
    REQUIRE(now[numbered(i)] != loopback);
  }
  // All at once: each keeps its place, and a further one finds none.
  addresses = {"127.0.0.1"};
  for (int i = 1; i < places; ++i)
    addresses.push_back(numbered(1000 + i));
  const auto full = table(*c);
  CHECK(full.size() == places);
  addresses.push_back("10.9.9.9");
  CHECK(table(*c) == full);
}

TEST_CASE("An address that comes after many others has a GID whose index a route can name") {
  child other("child: more addresses than the table has places", {});
  std::string said;
  CHECK(other.wait(&said) == 0);
  INFO(said);
}
