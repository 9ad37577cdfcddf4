// SPDX-License-Identifier: BSL-1.0
#include "support/other_machine.hpp"

#include "iwarp/big_endian.hpp"
#include "roce/invariant_crc.hpp"
#include "support/processes.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace soft::test {
namespace {

constexpr int not_permitted = 77;

// linux/ipv6.h, which has it, does not go with netinet/in.h.
struct in6_ifreq {
  in6_addr address;
  std::uint32_t prefix;
  int interface;
};

void set_up_ipv4(int s) {
  ifreq second{};
  std::strcpy(second.ifr_name, "lo:1");
  auto& own = reinterpret_cast<sockaddr_in&>(second.ifr_addr);
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(0xc0000202);
  REQUIRE(ioctl(s, SIOCSIFADDR, &second) == 0);
  rtentry all{};
  all.rt_dst.sa_family = all.rt_genmask.sa_family = AF_INET;
  all.rt_flags = RTF_UP;
  char device[] = "lo";
  all.rt_dev = device;
  REQUIRE(ioctl(s, SIOCADDRT, &all) == 0);
}

void set_up_ipv6(int s) {
  const int loopback = static_cast<int>(if_nametoindex("lo"));
  in6_ifreq own{};
  std::memcpy(&own.address, gid("2001:db8::2").raw, 16);
  own.prefix = 128;
  own.interface = loopback;
  REQUIRE(ioctl(s, SIOCSIFADDR, &own) == 0);
  // Without RTF_LOCAL the kernel makes a route that rejects: loopback alone cannot lead elsewhere.
  in6_rtmsg all{};
  all.rtmsg_type = RTN_LOCAL;
  all.rtmsg_flags = RTF_UP | RTF_LOCAL;
  all.rtmsg_metric = 1;
  all.rtmsg_ifindex = loopback;
  REQUIRE(ioctl(s, SIOCADDRT, &all) == 0);
}

} // namespace

void set_up_loopback() {
  const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq up{};
  std::strcpy(up.ifr_name, "lo");
  up.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  REQUIRE(ioctl(s, SIOCSIFFLAGS, &up) == 0);
  close(s);
}

void enter_namespace() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    _exit(not_permitted);
  set_up_loopback();
  const int v4 = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  set_up_ipv4(v4);
  close(v4);
  const int v6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  set_up_ipv6(v6);
  close(v6);
}

void check_in_namespace(const std::string& test_case, const child::variables& environment) {
  child process(test_case, environment);
  const int status = process.wait();
  if (status == not_permitted)
    WARN("needs the right to make a network namespace");
  else
    CHECK(status == 0);
}

ibv_gid gid(const char* address) {
  ibv_gid g{};
  REQUIRE(inet_pton(AF_INET6, address, g.raw) == 1);
  return g;
}

other_machine::other_machine(bool v6)
    : v6_(v6),
      sends_(socket(v6 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)),
      captures_(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC,
                       htons(static_cast<std::uint16_t>(v6 ? ETH_P_IPV6 : ETH_P_IP)))) {
  REQUIRE(sends_ >= 0);
  REQUIRE(captures_ >= 0);
}

other_machine::~other_machine() {
  close(sends_);
  close(captures_);
}

void other_machine::send(const roce::route& way, std::uint16_t from, std::uint16_t to,
                         std::span<const std::byte> payload) {
  roce::route r = way;
  r.bytes = static_cast<std::uint16_t>(8 + payload.size());
  const roce::network_header h = encode(r);
  bytes all(h.begin() + (v6_ ? 0 : 20), h.end());
  std::array<std::byte, 8> udp{};
  iwarp::put_big_endian(udp.data(), from);
  iwarp::put_big_endian(udp.data() + 2, to);
  iwarp::put_big_endian(udp.data() + 4, r.bytes);
  all.insert(all.end(), udp.begin(), udp.end());
  all.insert(all.end(), payload.begin(), payload.end());
  sockaddr_storage a{};
  if (v6_) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(a);
    v6.sin6_family = AF_INET6;
    std::memcpy(&v6.sin6_addr, way.destination.raw, 16);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(a);
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, way.destination.raw + 12, 4);
  }
  REQUIRE(sendto(sends_, all.data(), all.size(), 0, reinterpret_cast<sockaddr*>(&a),
                 v6_ ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) ==
          static_cast<ssize_t>(all.size()));
}

void other_machine::send(const roce::datagram& d, std::byte fill, const changes& c) {
  const auto frame = encode(d);
  bytes all(frame.before().begin(), frame.before().end());
  all.resize(all.size() + d.payload, fill);
  all.resize(all.size() + frame.padding);
  if (c.before_crc != nullptr)
    c.before_crc(all);
  const std::span<const std::byte> covered(all);
  roce::invariant_crc crc(covered.first<52>(), c.source_port);
  crc.update(covered.subspan(52));
  const auto end = crc.encode();
  all.insert(all.end(), end.begin(), end.end());
  if (c.after_crc != nullptr)
    c.after_crc(all);
  send(d.way, c.source_port, roce::udp_port, std::span(all).subspan(40));
}

other_machine::bytes other_machine::receive() {
  for (;;) {
    bytes all(1 << 16);
    const ssize_t n = recv(captures_, all.data(), all.size(), 0);
    REQUIRE(n > 0);
    all.resize(static_cast<std::size_t>(n));
    const std::byte protocol = all[v6_ ? 6 : 9];
    const bool is_udp = protocol == std::byte{17} || protocol == std::byte{44}; // a fragment
    // The addresses of other machines in these tests: 198.51.100.0/24 and 2001:db8:1::/48.
    const bool is_here = v6_ ? all[29] == std::byte{0} : all[16] != std::byte{198};
    if (is_udp && !is_here)
      return all;
  }
}

} // namespace soft::test
