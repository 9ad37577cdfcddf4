// SPDX-License-Identifier: BSL-1.0
//
// A device's information about its ports and addresses, compared with that of the system.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ifaddrs.h>
#include <iomanip>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <set>
#include <sstream>
#include <thread>

namespace test::ports_tests {
namespace {

/// A file of the device's port 1 in sysfs; empty if it is not there or cannot be read.
std::string sysfs(const device& d, const std::string& name) {
  std::ifstream file("/sys/class/infiniband/" + d.name() + "/ports/1/" + name);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value of that name in the output of ibv_devinfo for the port.
std::string devinfo(const device& d, const std::string& name) {
  FILE* const lines = ::popen(("ibv_devinfo -d " + d.name() + " -i 1").c_str(), "r");
  REQUIRE(lines != nullptr);
  std::array<char, 256> line;
  std::string result;
  while (std::fgets(line.data(), line.size(), lines) != nullptr) {
    std::istringstream words(line.data());
    std::string first, second;
    words >> first >> second;
    if (first == name + ":")
      result = second;
  }
  REQUIRE(::pclose(lines) == 0);
  return result;
}

/// A GID in the format of sysfs.
std::string text(const ibv_gid& gid) {
  std::ostringstream out;
  out << std::hex << std::setfill('0');
  for (unsigned i = 0; i < 16; ++i)
    out << (i != 0 && i % 2 == 0 ? ":" : "") << std::setw(2) << unsigned(gid.raw[i]);
  return out.str();
}

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

/// Changes an interface's addresses, and waits until the device has changed its GIDs.
void change(const device& d, const std::string& command, const std::string& address, bool there) {
  asio::io_context io(1);
  device_events events(io, d);
  const auto is_there = [&] {
    return d.best_gid(asio::ip::make_address(address)).has_value() == there;
  };
  const std::function<void()> wait = [&] {
    events.async_wait_event([&](error_code ec, device_event) {
      if (!ec)
        wait();
    });
  };
  wait();
  REQUIRE(run(command));
  until(io, is_there);
}

/// The network interfaces that have the address, with any scope id.
std::set<std::uint32_t> interfaces_of(const asio::ip::address_v6& address) {
  ifaddrs* all = nullptr;
  REQUIRE(getifaddrs(&all) == 0);
  std::set<std::uint32_t> found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET6)
      continue;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
    if (std::memcmp(v6->sin6_addr.s6_addr, address.to_bytes().data(), 16) == 0)
      found.insert(if_nametoindex(i->ifa_name));
  }
  freeifaddrs(all);
  return found;
}

/// Whether the device is RoCE.
bool has_gids_of_addresses(const device& d) {
  return d.type() == transport::infiniband && d.port(1).link_layer == IBV_LINK_LAYER_ETHERNET;
}

gid_entry entry(const char* address, gid_entry::kind type, std::uint32_t index = 0) {
  gid_entry result;
  const auto a = asio::ip::make_address(address);
  const auto v6 = a.is_v6() ? a.to_v6() : asio::ip::make_address_v6(asio::ip::v4_mapped, a.to_v4());
  const auto bytes = v6.to_bytes();
  std::copy(bytes.begin(), bytes.end(), result.gid.raw);
  result.type = type;
  result.index = index;
  return result;
}

} // namespace

TEST_CASE("a device is opened by its address") {
  const device own = open_device();
  error_code ec;
  const device found = device::open_for(device_address(own), ec);
  CHECK_FALSE(ec);
  REQUIRE(found.is_open());
  CHECK(found.name() == own.name());
  const std::string best = device::open_first().name();
  for (const char* any : {"0.0.0.0", "::"}) {
    const device chosen = device::open_for(asio::ip::make_address(any), ec);
    CHECK_FALSE(ec);
    CHECK(chosen.name() == best);
  }
  for (const char* loopback : {"127.0.0.1", "127.1.2.3", "::1"}) { // soft has the first one
    const device chosen = device::open_for(asio::ip::make_address(loopback), ec);
    CHECK_FALSE(ec);
    CHECK(chosen.is_open());
  }
  if (const auto address = device_address(own); address.is_v4()) { // of a peer on its network
    const asio::ip::address_v4 peer(address.to_v4().to_uint() ^ 3U);
    CHECK(device::open_for(peer, ec).name() == own.name());
    CHECK_FALSE(ec);
  }
  auto nobodys = asio::ip::make_address_v6("fe80::203");
  nobodys.scope_id(99'999); // an interface that does not exist, so there is no route
  CHECK_FALSE(device::open_for(nobodys, ec).is_open());
  CHECK(ec == error::no_gid);
  CHECK_THROWS_AS(device::open_for(nobodys), system_error);
}

TEST_CASE("a port has the attributes that the system reports") {
  const device dev = open_device();
  const ibv_port_attr port = dev.port(1);
  if (is_kernels(dev)) {
    CHECK(sysfs(dev, "state") == std::to_string(port.state) + ": ACTIVE");
    CHECK(sysfs(dev, "link_layer") == "Ethernet");
    CHECK(dev.megabits(1) == 1000 * std::stod(sysfs(dev, "rate"))); // "2.5 Gb/sec (1X SDR)"
  }
  CHECK(dev.megabits(1) != 0);
  CHECK(dev.megabits(200) == 0);
  CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET);
  CHECK(port.state == IBV_PORT_ACTIVE);
  CHECK(devinfo(dev, "state") == "PORT_ACTIVE");
  CHECK(devinfo(dev, "link_layer") == "Ethernet");
  CHECK(devinfo(dev, "active_mtu") == std::to_string(128 << port.active_mtu));
  CHECK(devinfo(dev, "max_mtu") == std::to_string(128 << port.max_mtu));
  CHECK(devinfo(dev, "port_lid") == std::to_string(port.lid));
  CHECK(dev.first_port() == 1);
  CHECK(dev.attributes().phys_port_cnt == 1);
  error_code ec;
  dev.port(200, ec);
  CHECK(ec);
  CHECK_THROWS_AS(dev.port(200), system_error);
}

TEST_CASE("a port's GIDs are those of the system") {
  const device dev = open_device();
  const auto gids = dev.gids();
  REQUIRE_FALSE(gids.empty());
  if (!is_kernels(dev))
    return not_on_this_device("GIDs in /sys");
  std::size_t used = 0;
  for (int i = 0; i < dev.port(1).gid_tbl_len; ++i) {
    const std::string gid = sysfs(dev, "gids/" + std::to_string(i));
    if (!gid.empty() && gid.find_first_not_of("0:") != std::string::npos)
      ++used;
  }
  CHECK(gids.size() == used);
  for (const gid_entry& e : gids) {
    const std::string index = std::to_string(e.index);
    INFO("GID " << index);
    CHECK(e.port == 1);
    CHECK(text(e.gid) == sysfs(dev, "gids/" + index));
    if (dev.type() == transport::iwarp)
      continue; // neither has a type or an interface
    CHECK(sysfs(dev, "gid_attrs/types/" + index) ==
          (e.type == gid_entry::kind::roce_v2 ? "RoCE v2" : "IB/RoCE v1"));
    CHECK(if_nametoindex(sysfs(dev, "gid_attrs/ndevs/" + index).c_str()) == e.interface_index);
  }
}

TEST_CASE("RoCE v2 is preferred to v1, and an IPv4 address to a global IPv6 one to a local one",
          "[h13]") {
  using kind = gid_entry::kind;
  const std::array best_first{
      entry("10.0.0.1", kind::roce_v2),    entry("2001:db8::1", kind::roce_v2),
      entry("fe80::1", kind::roce_v2),     entry("10.0.0.1", kind::roce_v1),
      entry("2001:db8::1", kind::roce_v1), entry("fe80::1", kind::roce_v1)};
  for (std::size_t i = 0; i < best_first.size(); ++i)
    for (std::size_t j = 0; j < best_first.size(); ++j)
      CHECK(detail::better_gid(best_first[i], best_first[j]) == (i < j));
  CHECK_FALSE(
      detail::better_gid(entry("10.0.0.1", kind::roce_v2, 1), entry("10.0.0.2", kind::roce_v2, 2)));
}

TEST_CASE("a device keeps its addresses in a network namespace that has none of its interfaces",
          "[h13]") {
  const device dev = open_device();
  REQUIRE_FALSE(dev.addresses().empty());
  if (!std::ifstream("/sys/class/infiniband/" + dev.name() + "/node_type"))
    return not_on_this_device("interfaces that the kernel knows");
  bool entered = false;
  std::vector<gid_entry> gids;
  std::vector<asio::ip::address> addresses;
  std::thread([&] {
    entered = ::unshare(CLONE_NEWNET) == 0; // of this thread
    gids = dev.gids();
    addresses = dev.addresses();
  }).join();
  if (!entered)
    return not_on_this_device("the right to make a network namespace");
  CHECK_FALSE(gids.empty());
  CHECK(addresses.empty() != has_gids_of_addresses(dev));
}

TEST_CASE("the ranking of the devices names this one") {
  const device dev = open_device();
  const std::string all = device::explain();
  INFO(all);
  CHECK(all.find(". " + dev.name() + " port 1: active, ") != std::string::npos);
  CHECK(all.find(dev.addresses().front().to_string()) != std::string::npos);
}

TEST_CASE("the best GID is of the device's address, or of the requested one") {
  const device dev = open_device();
  const auto gids = dev.gids();
  CHECK(std::is_sorted(gids.begin(), gids.end(), detail::better_gid));
  REQUIRE(dev.best_gid(1));
  CHECK(dev.best_gid(1)->index == gids.front().index);
  CHECK_FALSE(dev.best_gid(77));
  CHECK_FALSE(dev.best_gid(asio::ip::make_address("203.0.113.1")));
  const auto own = own_endpoint().address();
  const auto addresses = dev.addresses();
  CHECK(std::find(addresses.begin(), addresses.end(), own) != addresses.end());
  const auto found = dev.best_gid(own);
  REQUIRE(found);
  if (!has_gids_of_addresses(dev))
    return;
  CHECK(found->address() == own);
  CHECK(found->type == gid_entry::kind::roce_v2);
  CHECK(found->index == gids.front().index);
  CHECK(found->interface_index != 0);
}

TEST_CASE("link-local addresses come last, and lead to the device by their scope id") {
  const device dev = open_device();
  const auto is_local = [](const asio::ip::address& a) {
    return a.is_v6() && a.to_v6().is_link_local();
  };
  const auto addresses = dev.addresses();
  const auto local = std::find_if(addresses.begin(), addresses.end(), is_local);
  CHECK(std::all_of(local, addresses.end(), is_local));
  // The first GID of a RoCE port is link-local, even if its interface has no such address.
  const auto interfaces =
      local == addresses.end() ? std::set<std::uint32_t>() : interfaces_of(local->to_v6());
  if (interfaces.empty())
    return not_on_this_device("a link-local address of its interface");
  const std::uint32_t interface = local->to_v6().scope_id();
  CHECK(interfaces.count(interface) == 1);

  // The GID is also found without its interface, but not with another interface.
  asio::ip::address_v6 other = local->to_v6();
  other.scope_id(0);
  CHECK(device::open_for(other).name() == dev.name());
  other.scope_id(*interfaces.rbegin() + 1);
  error_code ec;
  CHECK_FALSE(device::open_for(other, ec).is_open());
  CHECK(ec == error::no_gid);
  REQUIRE(dev.best_gid(*local));
  if (has_gids_of_addresses(dev)) {
    CHECK(dev.best_gid(*local)->address() == *local);
    CHECK(dev.best_gid(*local)->interface_index == interface);
    CHECK_FALSE(dev.best_gid(other));
    other.scope_id(0);
    CHECK(dev.best_gid(other)->index == dev.best_gid(*local)->index);
  }

  asio::io_context io(1);
  const protection_domain pd(dev);
  queue_pair a(io, pd), b(io, pd);
  acceptor listener(io, {*local, 0});
  connector initiator(io);
  outcome<connection_info> accepted, connected;
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  until(io, [&] { return accepted.done() && connected.done(); });
  INFO(describe(connected.ec));
  CHECK(accepted.succeeded());
  REQUIRE(connected.succeeded());
  CHECK(connected.value.remote.address() == *local);
}

// The last test, as it changes the interface's addresses.
TEST_CASE("the best GID follows the addresses of the interface", "[h13]") {
  const device dev = open_device();
  if (!has_gids_of_addresses(dev))
    return not_on_this_device("GIDs that are addresses");
  const std::string interface = sysfs(dev, "gid_attrs/ndevs/0");
  if (std::getenv("ASIO_RDMA_IN_LAB") == nullptr || interface.empty())
    return not_on_this_device("an interface whose addresses the test may change");
  const std::string own = own_endpoint().address().to_string();
  const std::string global = "2001:db8::77", second = "192.0.2.77";
  const std::string of_interface = " dev " + interface;
  change(dev, "ip addr add " + global + "/64 nodad" + of_interface, global, true);
  change(dev, "ip addr add " + second + "/24" + of_interface, second, true);
  CHECK(dev.best_gid(1)->address().to_string() == own); // the first of the IPv4 addresses
  const auto of_global = dev.best_gid(asio::ip::make_address(global));
  REQUIRE(of_global);
  CHECK(of_global->type == gid_entry::kind::roce_v2);
  CHECK(dev.best_gid(asio::ip::make_address(second)).has_value());

  // A queue pair takes the GID of the address that it is given, and keeps the GID that it has
  // reported.
  asio::io_context io(1);
  const protection_domain pd(dev);
  queue_pair_options options;
  options.local = asio::ip::make_address(second);
  queue_pair given(io, pd, options);
  const auto of_second = dev.best_gid(*options.local);
  CHECK(text(given.local_address().gid) == text(of_second->gid));
  options.local = asio::ip::make_address("203.0.113.1");
  error_code ec;
  queue_pair(io, pd, options).local_address(ec);
  CHECK(ec == error::no_gid);

  // Otherwise it takes the best GID of its port.
  change(dev, "ip addr flush" + of_interface + " to " + own, own, false);
  CHECK(dev.best_gid(1)->address().to_string() == second);
  const std::string gid = text(queue_pair(io, pd).local_address().gid);
  CHECK(gid == text(dev.best_gid(asio::ip::make_address(second))->gid));
  change(dev, "ip addr flush" + of_interface + " to " + second, second, false);
  REQUIRE(dev.best_gid(1)->address().is_v6());
  CHECK_FALSE(dev.best_gid(1)->address().to_v6().is_link_local());
  CHECK(text(given.local_address().gid) == text(of_second->gid));

  // It connects by the index that this GID has then, and not without it.
  given.connect(given.local_address(), ec);
  CHECK(ec == error::no_gid);
  const std::array<std::string, 2> others = {"192.0.2.78", "192.0.2.79"};
  for (const std::string& other : others)
    change(dev, "ip addr add " + other + "/24" + of_interface, other, true);
  change(dev, "ip addr add " + second + "/24" + of_interface, second, true);
  const auto moved = dev.best_gid(asio::ip::make_address(second));
  REQUIRE(moved);
  REQUIRE(moved->index != of_second->index);
  options.local = asio::ip::make_address(others[0]);
  const queue_pair peer(io, pd, options);
  given.connect(peer.local_address(), ec);
  CHECK_FALSE(ec);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(given.native_handle(), &attr, IBV_QP_AV, &init) == 0);
  CHECK(attr.ah_attr.grh.sgid_index == moved->index);
  for (const std::string& other : others)
    change(dev, "ip addr flush" + of_interface + " to " + other, other, false);
  change(dev, "ip addr flush" + of_interface + " to " + second, second, false);
  change(dev, "ip addr flush" + of_interface + " to " + global, global, false);
  change(dev, "ip addr add " + own + "/24" + of_interface, own, true);
  CHECK(dev.best_gid(1)->address().to_string() == own);
}

} // namespace test::ports_tests
