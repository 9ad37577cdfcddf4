// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include "verbs/port_ranking.hpp"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <string>
#include <vector>

using namespace asio_rdma;
using detail::port_facts;

namespace {

asio::ip::address ip(const char* text) { return asio::ip::make_address(text); }

/// An active port of an adapter on node 0, with RoCE at 100 Gb/s and an address.
port_facts port(const char* device, std::uint8_t number = 1) {
  port_facts p;
  p.device = device;
  p.port = number;
  p.type = transport::infiniband;
  p.active = true;
  p.megabits = 100'000;
  p.node = 0;
  p.addresses = {ip("10.0.0.1")};
  return p;
}

template <std::invocable<port_facts&> Change>
port_facts port(const char* device, Change change) {
  port_facts p = port(device);
  change(p);
  return p;
}

port_facts closed(const char* device) {
  port_facts p;
  p.device = device;
  p.open_error = error::device_permission;
  return p;
}

std::vector<std::string> names(const std::vector<port_facts>& ports) {
  std::vector<std::string> result;
  for (const port_facts& p : ports)
    result.push_back(p.device + "/" + std::to_string(p.port));
  return result;
}

/// Each permutation of the ports is ranked in this order.
void check_order(const std::vector<port_facts>& best_first, std::optional<int> node) {
  std::vector<std::size_t> order(best_first.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  do {
    std::vector<port_facts> ports;
    for (const std::size_t i : order)
      ports.push_back(best_first[i]);
    detail::rank(ports, node);
    REQUIRE(names(ports) == names(best_first));
  } while (std::next_permutation(order.begin(), order.end()));
}

gid_entry gid(const char* address, gid_entry::kind type, std::uint32_t interface) {
  gid_entry e;
  const auto a = ip(address);
  const auto bytes =
      (a.is_v4() ? make_address_v6(asio::ip::v4_mapped, a.to_v4()) : a.to_v6()).to_bytes();
  std::memcpy(e.gid.raw, bytes.data(), bytes.size());
  e.type = type;
  e.interface_index = interface;
  return e;
}

} // namespace

TEST_CASE("each fact decides between ports that are equal in those before it", "[h20]") {
  const auto slow = [](port_facts& p) {
    p.megabits = 10'000;
    p.node = 0;
  };
  check_order({port("ib", [](port_facts& p) { p.infiniband = true; }), // before RoCE
               port("roce"),                                           // near the caller
               port("far", [](port_facts& p) { p.node = 1; }),         // faster
               port("slow", slow),                                     // an adapter
               port("rxe0", [](port_facts& p) { p.is_software = true; }),
               port("elsewhere", [](port_facts& p) { p.addresses.clear(); }),
               port("efa", [](port_facts& p) { p.type = transport::other; })},
              0);
  check_order({port("rxe0",
                    [](port_facts& p) {
                      p.is_software = true;
                      p.addresses.clear();
                    }),
               port("down", [](port_facts& p) { p.active = false; }), closed("mlx5_9")},
              {});
}

TEST_CASE("a faster adapter of another NUMA node precedes a slower one of the caller's", "[h20]") {
  const port_facts fast = port("mlx5_0", [](port_facts& p) {
    p.megabits = 400'000;
    p.node = 1;
  });
  check_order({fast, port("mlx5_1")}, 0);
}

TEST_CASE("nothing is nearer if the node of the caller, or of the adapter, is not known", "[h20]") {
  const port_facts unknown = port("b", [](port_facts& p) { p.node.reset(); });
  for (const std::optional<int> node : {std::optional<int>(), std::optional<int>(1)}) {
    std::vector<port_facts> ports{unknown, port("a")};
    detail::rank(ports, node);
    CHECK(names(ports) == std::vector<std::string>{"b/1", "a/1"});
    std::reverse(ports.begin(), ports.end());
    detail::rank(ports, node);
    CHECK(names(ports) == std::vector<std::string>{"a/1", "b/1"});
  }
}

TEST_CASE("a bond of two ports precedes the single ports of a second adapter", "[h20]") {
  // With a bond, mlx5 has one device with one port. Its GIDs are those of the bond's interface.
  const port_facts bond = port("mlx5_bond_0", [](port_facts& p) { p.megabits = 200'000; });
  check_order({bond, port("mlx5_2"), port("mlx5_3", [](port_facts& p) { p.active = false; })}, 0);
}

TEST_CASE("of one device the active port is taken, whatever its number", "[h20]") {
  std::vector<port_facts> ports{port("mlx4_0", 1), port("mlx4_0", 2)};
  ports[0].active = false;
  detail::rank(ports, 0);
  CHECK(names(ports) == std::vector<std::string>{"mlx4_0/2", "mlx4_0/1"});
  CHECK(detail::is_usable(ports[0]));
  CHECK_FALSE(detail::is_usable(ports[1]));
  CHECK_FALSE(detail::is_usable(closed("mlx5_0")));
}

TEST_CASE("a port of InfiniBand needs no address") {
  const port_facts ib = port("ib", [](port_facts& p) {
    p.infiniband = true;
    p.addresses.clear();
  });
  check_order({ib, port("roce"), port("none", [](port_facts& p) { p.addresses.clear(); })}, 0);
}

TEST_CASE("the ranking is explained by the facts and by what decides") {
  std::vector<port_facts> ports{closed("mlx5_2"),
                                port("rxe0",
                                     [](port_facts& p) {
                                       p.is_software = true;
                                       p.addresses.clear();
                                       p.node.reset();
                                     }),
                                port("mlx5_1", [](port_facts& p) { p.active = false; }),
                                port("mlx5_0"), port("mlx5_4")};
  detail::rank(ports, 0);
  CHECK(detail::explain(ports, 0) ==
        "1. mlx5_0 port 1: active, Ethernet, 100 Gb/s, NUMA node 0 (the caller's), 10.0.0.1; "
        "before the next because the system lists it first\n"
        "2. mlx5_4 port 1: active, Ethernet, 100 Gb/s, NUMA node 0 (the caller's), 10.0.0.1; "
        "before the next because it has an address in this network namespace\n"
        "3. rxe0 port 1: active, Ethernet, software, 100 Gb/s, no address in this network "
        "namespace; before the next because it is active\n"
        "4. mlx5_1 port 1: not active, Ethernet, 100 Gb/s, NUMA node 0 (the caller's), 10.0.0.1; "
        "not usable\n"
        "5. mlx5_2: " +
            make_error_code(error::device_permission).message() + "; not usable\n");
  CHECK(detail::explain({}, 0) == "");
}

TEST_CASE("the rate of a port is lanes by the rate of a lane") {
  CHECK(detail::megabits_of(2, 32) == 100'000);  // 4 lanes of EDR
  CHECK(detail::megabits_of(2, 64) == 200'000);  // HDR
  CHECK(detail::megabits_of(2, 128) == 400'000); // NDR
  CHECK(detail::megabits_of(1, 1) == 2'500);     // one of SDR
  CHECK(detail::megabits_of(16, 64) == 100'000); // two lanes
  CHECK(detail::megabits_of(3, 32) == 0);
  CHECK(detail::megabits_of(2, 3) == 0);
}

TEST_CASE("the GIDs of other network namespaces are recognized", "[h13]") {
  using kind = gid_entry::kind;
  const std::vector<detail::network_interface> here{
      {1, "lo", {ip("127.0.0.1")}},
      {2, "eth0", {ip("10.0.0.1"), ip("2001:db8::1"), ip("fe80::1%2")}},
      {5, "bond0", {ip("192.0.2.7")}}};
  struct row {
    const char* why;
    gid_entry entry;
    const char* name;
    bool expected;
  };
  for (const row& r : std::initializer_list<row>{
           {"its interface is here", gid("10.0.0.1", kind::roce_v2, 2), "eth0", true},
           {"so it is for v1", gid("10.0.0.1", kind::roce_v1, 2), "eth0", true},
           {"IPv6", gid("2001:db8::1", kind::roce_v2, 2), "eth0", true},
           {"the bond's", gid("192.0.2.7", kind::roce_v2, 5), "bond0", true},
           {"the name cannot be read", gid("10.0.0.1", kind::roce_v2, 2), "", true},
           {"InfiniBand has no interface", gid("fe80::5", kind::infiniband, 0), "", true},
           {"iWARP has no address", gid("2001:db8::7", kind::infiniband, 2), "eth0", true},
           {"a link-local GID without such an address", gid("fe80::2", kind::roce_v2, 5), "bond0",
            true},
           {"no interface has the number", gid("10.0.0.1", kind::roce_v2, 9), "eth0", false},
           {"another name", gid("10.0.0.1", kind::roce_v2, 2), "ens1f0", false},
           {"a link-local GID of another name", gid("fe80::1", kind::roce_v2, 2), "veth1", false},
           {"number and name happen to be here", gid("10.9.9.9", kind::roce_v2, 2), "eth0", false},
           {"the address is another interface's", gid("192.0.2.7", kind::roce_v2, 2), "eth0",
            false},
           {"iWARP, elsewhere", gid("2001:db8::7", kind::infiniband, 7), "eth7", false},
       }) {
    INFO(r.why);
    CHECK(detail::is_here(r.entry, r.name, here) == r.expected);
  }
}
