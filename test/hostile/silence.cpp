// SPDX-License-Identifier: BSL-1.0
// Peers that fall silent.
#include "global/global_memory_impl.hpp"
#include "hostile/siege.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace test::silence_tests {
namespace {

using kind = detail::handshake::kind;
using namespace std::chrono_literals;

/// The requests that have no answer yet. Fewer than the acceptor's handshakes: otherwise good
/// clients of the same address would wait behind requests, for a time that depends on the number of
/// requests (`acceptor_options::patience`).
constexpr std::size_t most_unanswered = 32;

/// So many peers send requests, and do not go on when they are accepted.
void fall_silent_in_the_handshake(std::size_t count) {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < count; ++i) {
      bare_peer& p =
          peers.emplace_back(i % 2 == 0 ? s.report()->messages_port : s.report()->bytes_port,
                             bare_peer::shape::small());
      if (i >= most_unanswered)
        peers[i - most_unanswered].wait_for_event();
      p.request(p.hello(i % 2 == 0 ? kind::message : kind::stream));
    }
    s.served();
  }
  s.check();
}

/// The name of the interface that has this address.
std::string interface_of(const asio::ip::address_v4& address) {
  ifaddrs* all = nullptr;
  REQUIRE(::getifaddrs(&all) == 0);
  std::string result;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    sockaddr_in a{};
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET)
      continue;
    std::memcpy(&a, i->ifa_addr, sizeof a);
    if (a.sin_addr.s_addr == htonl(address.to_uint()))
      result = i->ifa_name;
  }
  ::freeifaddrs(all);
  return result;
}

/// Another address of the device, that is of another source; none on a device that this test must
/// not configure. All addresses of 127.0.0.0/8 are the machine's. In the lab, the device's
/// interface gets a further address, for as long as the lab runs (netdevice(7)).
std::optional<asio::ip::address> other_address() {
  const asio::ip::address_v4 own = own_endpoint().address().to_v4(), other(own.to_uint() + 1);
  if (own.is_loopback())
    return other;
  if (std::getenv("ASIO_RDMA_IN_LAB") == nullptr)
    return {};
  const asio::ip::tcp::endpoint to(other, 0);
  ifreq wanted{};
  (interface_of(own) + ":1").copy(wanted.ifr_name, IFNAMSIZ - 1);
  std::memcpy(&wanted.ifr_addr, to.data(), to.size());
  const int any = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  REQUIRE(::ioctl(any, SIOCSIFADDR, &wanted) == 0);
  ::close(any);
  return other;
}

} // namespace

TEST_CASE("silence: more connectors of another source than an acceptor has handshakes") {
  const auto from = other_address();
  if (!from)
    return not_on_this_device("a second address");
  siege s;
  {
    std::deque<bare_peer> peers;
    auto shape = bare_peer::shape::small();
    shape.from = from;
    for (std::size_t i = 0; i < repetitions(400); ++i) {
      const kind what = i % 2 == 0 ? kind::message : kind::stream;
      bare_peer& p = peers.emplace_back(
          what == kind::message ? s.report()->messages_port : s.report()->bytes_port, shape);
      p.request(p.hello(what));
    }
    s.served(10);
    CHECK(s.report()->most_handshakes > acceptor_options().handshakes / 2);
    CHECK(s.report()->most_handshakes <= acceptor_options().handshakes);
  }
  s.check();
}

TEST_CASE("silence: connectors that do not go on after their requests") {
  fall_silent_in_the_handshake(repetitions(40));
}

TEST_CASE("silence: 1000 connectors that do not go on after their requests", "[.long]") {
  fall_silent_in_the_handshake(1000);
}

TEST_CASE("silence: peers that send nothing after the handshake") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < 40; ++i) {
      bare_peer& p =
          peers.emplace_back(i % 2 == 0 ? s.report()->messages_port : s.report()->bytes_port,
                             bare_peer::shape::small());
      const detail::handshake h = p.hello(i % 2 == 0 ? kind::message : kind::stream);
      const auto bytes = encode(h);
      CHECK(p.connect(bytes_view(bytes).first(h.size())));
    }
    s.served();
  }
  s.check();
}

TEST_CASE("silence: nodes that do not introduce themselves") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < repetitions(100); ++i) {
      bare_peer& p = peers.emplace_back(s.report()->nodes_port, bare_peer::shape::small());
      CHECK(p.connect(kind::message));
    }
    s.served();
    const auto left = [&] {
      return std::count_if(peers.begin(), peers.end(), [](bare_peer& p) {
        p.receive(1ms);
        return !p.ended();
      });
    };
    constexpr std::ptrdiff_t most = detail::global_memory_impl::most_strangers;
    s.until([&] { return left() <= most; }, "the end of the oldest strangers");
    CHECK(left() == most);
    s.until([&] { return left() == 0; }, "the end of strangers after `keep_alive`");
  }
  s.check();
}

} // namespace test::silence_tests
