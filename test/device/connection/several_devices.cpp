// SPDX-License-Identifier: BSL-1.0
// A machine with several devices: which one is opened, and which one a connection takes. To be run
// in the lab with rxe and siw, whose interfaces have the names of the devices without their digit.
#include "catch.hpp"
#include "device/adapters/numbered_links.hpp"
#include "verbs/port_ranking.hpp"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace test::several_devices_tests {
namespace {

using namespace test::numbered;

/// In the order of the system.
std::vector<device> all_devices() {
  std::vector<device> result;
  for (const device::description& d : device::list())
    result.push_back(device::open(d.name));
  REQUIRE(result.size() >= 2);
  return result;
}

std::uint32_t rate(const device& d) {
  const ibv_port_attr a = d.port(1);
  return detail::megabits_of(a.active_width, a.active_speed);
}

/// The lines of `device::explain`.
std::vector<std::string> ranking() {
  std::istringstream all(device::explain());
  std::vector<std::string> result;
  for (std::string line; std::getline(all, line);)
    result.push_back(line);
  return result;
}
bool is_about(const std::string& line, std::size_t place, const device& d) {
  return line.rfind(std::to_string(place) + ". " + d.name() + " port 1: ", 0) == 0;
}
bool says(const std::string& line, const std::string& words) {
  return line.find(words) != std::string::npos;
}

/// Calls ip(8) for the interface of a device.
void ip(const std::string& begin, const device& d, const std::string& end = "") {
  std::string interface = d.name();
  interface.pop_back();
  REQUIRE(std::system(("ip " + begin + " dev " + interface + " " + end).c_str()) == 0);
}

// The kernel reports some changes of an interface a moment later.
void until(const std::function<bool()>& condition) {
  while (!condition())
    std::this_thread::yield();
}

struct links {
  links(asio::io_context& io, const device& d) : at(io, d, d.addresses().at(0)) {}

  site at;
  talk_link talk{at, patience()};
  stream_link stream{at, patience()};
};

} // namespace

TEST_CASE("of several devices that one is opened that has the address", "[.several][h20]") {
  for (const device& d : all_devices()) {
    const auto addresses = d.addresses();
    CHECK_FALSE(addresses.empty());
    for (const asio::ip::address& a : addresses) {
      INFO(a << " of " << d.name());
      CHECK(device::open_for(a).name() == d.name());
    }
  }
}

TEST_CASE("of several devices the first one of the ranking is opened", "[.several][h20]") {
  std::vector<device> wanted = all_devices();
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const device& a, const device& b) { return rate(a) > rate(b); });
  const auto lines = ranking();
  INFO(device::explain());
  REQUIRE(lines.size() == wanted.size());
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    CHECK(is_about(lines[i], i + 1, wanted[i]));
    CHECK(says(lines[i], ": active, "));
    CHECK(says(lines[i], wanted[i].addresses().front().to_string()));
    if (i + 1 != wanted.size())
      CHECK(says(lines[i], rate(wanted[i]) != rate(wanted[i + 1])
                               ? "before the next because it is faster"
                               : "before the next because the system lists it first"));
  }
  CHECK(device::open_first().name() == wanted.front().name());
}

TEST_CASE("a device whose link is down is ranked last", "[.several][h20]") {
  for (const device& d : all_devices()) {
    ip("link set", d, "down");
    until([&] { return d.port(1).state != IBV_PORT_ACTIVE; });
    const auto lines = ranking();
    INFO(device::explain());
    CHECK(says(lines.front(), "before the next because it is active"));
    CHECK(is_about(lines.back(), lines.size(), d));
    CHECK(says(lines.back(), ": not active, "));
    CHECK(says(lines.back(), "; not usable"));
    CHECK(device::open_first().name() != d.name());
    ip("link set", d, "up");
    until([&] { return d.port(1).state == IBV_PORT_ACTIVE; });
  }
}

TEST_CASE("a device without an address is ranked last", "[.several][h20]") {
  const auto all = all_devices();
  const auto siw = std::find_if(all.begin(), all.end(), is_siw);
  REQUIRE(siw != all.end()); // rxe has a GID without an address, too
  const auto before = siw->addresses();
  ip("address flush", *siw);
  until([&] { return siw->addresses().empty(); });
  const auto lines = ranking();
  INFO(device::explain());
  CHECK(says(lines.front(), "before the next because it has an address in this network namespace"));
  CHECK(is_about(lines.back(), lines.size(), *siw));
  CHECK(says(lines.back(), ", no address in this network namespace"));
  CHECK(device::open_first().name() != siw->name());
  ip("address add " + before.front().to_string() + "/24", *siw);
  until([&] { return !siw->addresses().empty(); });
  CHECK(siw->addresses().front() == before.front());
}

TEST_CASE("connections to addresses of several devices go by these devices", "[.several][h20]") {
  const auto all = all_devices();
  asio::io_context io(1);
  SECTION("at the same time, on one context") {
    std::deque<links> each;
    for (const device& d : all)
      each.emplace_back(io, d);
    for (links& l : each) {
      l.talk.begin();
      l.stream.begin();
    }
    for (links& l : each)
      test::until(io, [&] { return l.talk.is_beyond_mark(100) && l.stream.is_beyond_mark(1000); });
    for (links& l : each) {
      l.talk.finish();
      l.stream.finish();
      CHECK(l.at.pool.statistics().blocks_in_use == 0);
    }
  }
  SECTION("and not by another one") {
    for (const device& d : all) {
      acceptor listener(io, {d.addresses().at(0), 0});
      connector initiator(io);
      for (const device& other : all) {
        if (other == d)
          continue;
        asio_rdma::connection c(io, memory_pool{protection_domain(other)});
        connection connected;
        initiator.async_connect(c, listener.local_endpoint(), connected.handler());
        test::until(io, [&] { return connected.done(); });
        CHECK(connected.ec == error::wrong_device);
      }
    }
  }
}

} // namespace test::several_devices_tests
