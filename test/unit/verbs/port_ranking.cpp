// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include "verbs/port_ranking.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <string>
#include <vector>

using namespace asio_rdma;
using detail::addresses_of;
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

using addresses = std::vector<asio::ip::address>;

std::vector<std::uint8_t> ethernet(std::uint8_t number) { return {2, 0, 0, 7, 8, number}; }

/// The hardware address of an IPoIB interface: flags, the number of its queue pair, its port's GID.
std::vector<std::uint8_t> ipoib(const gid_entry& port, std::uint8_t queue_pair) {
  std::vector<std::uint8_t> result{0x80, 0, 0, queue_pair};
  result.insert(result.end(), std::begin(port.gid.raw), std::end(port.gid.raw));
  return result;
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

TEST_CASE("a port of InfiniBand needs no address, but is better with one") {
  const port_facts ib = port("ib", [](port_facts& p) {
    p.infiniband = true;
    p.addresses.clear();
  });
  check_order({ib, port("roce"), port("none", [](port_facts& p) { p.addresses.clear(); })}, 0);
  const port_facts with_address = port("ipoib", [](port_facts& p) { p.infiniband = true; });
  check_order({with_address, ib, port("roce")}, 0);
  CHECK(detail::explain(std::vector{with_address, ib}, 0) ==
        "1. ipoib port 1: active, InfiniBand, 100 Gb/s, NUMA node 0 (the caller's), 10.0.0.1; "
        "before the next because it has an address, which rdma_cm needs\n"
        "2. ib port 1: active, InfiniBand, 100 Gb/s, NUMA node 0 (the caller's), no address in "
        "this network namespace\n");
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
  CHECK(detail::megabits_of(2, 256) == 800'000); // XDR
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

TEST_CASE("a GID of RoCE is an address, whatever interfaces have") {
  using kind = gid_entry::kind;
  const std::vector<detail::network_interface> here{
      {2, "eth0", {ip("10.0.0.1"), ip("10.0.0.2")}, ethernet(1)}};
  CHECK(addresses_of(gid("10.0.0.1", kind::roce_v2, 2), transport::infiniband, here) ==
        addresses{ip("10.0.0.1")});
  CHECK(addresses_of(gid("2001:db8::1", kind::roce_v1, 2), transport::infiniband, {}) ==
        addresses{ip("2001:db8::1")});
  CHECK(addresses_of(gid("fe80::1", kind::roce_v2, 2), transport::infiniband, here) ==
        addresses{ip("fe80::1%2")});
}

TEST_CASE("a GID of iWARP leads to the interface whose hardware address it has") {
  const std::vector<detail::network_interface> here{
      {1, "lo", {ip("127.0.0.1")}, std::vector<std::uint8_t>(6)},
      {2, "eth0", {ip("10.0.0.1"), ip("2001:db8::1")}, ethernet(1)},
      {3, "eth1", {ip("10.1.0.1")}, ethernet(2)},
      {4, "eth2", {}, ethernet(3)},
      {5, "tun0", {ip("10.4.0.1")}, {}}};
  const auto of_port = [&here](std::uint8_t number) {
    gid_entry e; // the hardware address, and zeros
    std::ranges::copy(ethernet(number), e.gid.raw);
    e.interface_index = 1u + number;
    return addresses_of(e, transport::iwarp, here);
  };
  CHECK(of_port(1) == addresses{ip("10.0.0.1"), ip("2001:db8::1")});
  CHECK(of_port(2) == addresses{ip("10.1.0.1")});
  CHECK(of_port(3).empty()); // an interface without an address
  CHECK(of_port(4).empty()); // no interface
}

TEST_CASE("a GID of InfiniBand leads to the IPoIB interfaces whose hardware address it ends") {
  const gid_entry first = gid("fe80::c2:3:4:5", gid_entry::kind::infiniband, 0);
  const gid_entry second = gid("fe80::c2:3:4:6", gid_entry::kind::infiniband, 0);
  const gid_entry third = gid("fe80::c2:3:4:7", gid_entry::kind::infiniband, 0);
  const gid_entry fourth = gid("fe80::c2:3:4:8", gid_entry::kind::infiniband, 0);
  // The same bytes where they are no GID: too long, too short, and at the begin.
  std::vector<std::uint8_t> longer = ipoib(fourth, 0x48), shifted = ipoib(fourth, 0x48);
  longer.insert(longer.begin(), 0);
  std::rotate(shifted.begin(), shifted.begin() + 4, shifted.end());
  const std::vector<std::uint8_t> shorter(std::begin(fourth.gid.raw), std::end(fourth.gid.raw));
  const std::vector<detail::network_interface> here{
      {2, "eth0", {ip("10.0.0.1")}, ethernet(1)},
      {6, "ib0", {ip("192.0.2.7"), ip("fe80::2c2:3:4:5%6")}, ipoib(first, 0x48)},
      {7, "ib1", {ip("192.0.2.8")}, ipoib(second, 0x49)},
      {8, "ib2", {}, ipoib(third, 0x50)},
      {9, "ib0.8001", {ip("198.51.100.7")}, ipoib(first, 0x51)}, // another partition
      {10, "x0", {ip("10.0.1.1")}, longer},
      {11, "x1", {ip("10.0.1.2")}, shorter},
      {12, "x2", {ip("10.0.1.3")}, shifted}};
  const auto of = [&here](const gid_entry& e) {
    return addresses_of(e, transport::infiniband, here);
  };
  CHECK(of(first) == addresses{ip("192.0.2.7"), ip("fe80::2c2:3:4:5%6"), ip("198.51.100.7")});
  CHECK(of(second) == addresses{ip("192.0.2.8")});
  CHECK(of(third).empty());  // an interface without an address
  CHECK(of(fourth).empty()); // no interface
  CHECK(addresses_of(first, transport::infiniband, {}).empty());
  CHECK(addresses_of(fourth, transport::other, here).empty());
}

TEST_CASE("interfaces have the addresses that getifaddrs lists, and the whole hardware address") {
  // As the C library has it: with room for a hardware address of more than 8 bytes.
  struct long_link {
    sockaddr_ll head{};
    std::uint8_t rest[16] = {};
  };
  const gid_entry port = gid("fe80::c2:3:4:5", gid_entry::kind::infiniband, 0);
  long_link links[2];
  const auto fill = [](long_link& to, const std::vector<std::uint8_t>& hardware) {
    to.head.sll_family = AF_PACKET;
    to.head.sll_halen = static_cast<std::uint8_t>(hardware.size());
    std::memcpy(reinterpret_cast<std::uint8_t*>(&to) + offsetof(sockaddr_ll, sll_addr),
                hardware.data(), hardware.size());
  };
  fill(links[0], ethernet(1));
  fill(links[1], ipoib(port, 0x48));
  sockaddr_in v4[3] = {};
  sockaddr_in6 v6{};
  for (std::uint8_t i = 0; i < 3; ++i) {
    v4[i].sin_family = AF_INET;
    v4[i].sin_addr.s_addr = htonl(0xc0000207u + i); // 192.0.2.7
  }
  v6.sin6_family = AF_INET6;
  v6.sin6_addr.s6_addr[0] = 0xfe;
  v6.sin6_addr.s6_addr[1] = 0x80;
  v6.sin6_scope_id = 6;
  struct row {
    std::string name;
    void* address;
  };
  row rows[] = {{"eth0", &links[0]}, {"ib0", &links[1]}, {"none0", nullptr}, {"eth0", &v4[0]},
                {"ib0", &v4[1]},     {"ib0:1", &v4[2]},  {"ib0", &v6}};
  std::vector<ifaddrs> list(std::size(rows));
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].ifa_next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    list[i].ifa_name = rows[i].name.data();
    list[i].ifa_addr = static_cast<sockaddr*>(rows[i].address);
  }
  const auto found = detail::interfaces_of(list.data());
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "eth0");
  CHECK(found[0].hardware == ethernet(1));
  CHECK(found[0].addresses == addresses{ip("192.0.2.7")});
  CHECK(found[1].name == "ib0");
  CHECK(found[1].hardware == ipoib(port, 0x48));
  CHECK(found[1].addresses == addresses{ip("192.0.2.8"), ip("192.0.2.9"), ip("fe80::%6")});
  CHECK(addresses_of(port, transport::infiniband, found) == found[1].addresses);
  CHECK(detail::interfaces_of(nullptr).empty());
}
