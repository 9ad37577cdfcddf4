// SPDX-License-Identifier: BSL-1.0
#include "wire/traffic_class.hpp"

#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>

namespace soft {

void set_traffic_class(int socket, int family, std::uint8_t value) noexcept {
  const int v = value;
  if (family == AF_INET6)
    setsockopt(socket, IPPROTO_IPV6, IPV6_TCLASS, &v, sizeof(v));
  else
    setsockopt(socket, IPPROTO_IP, IP_TOS, &v, sizeof(v));
}

// TCP keeps the value of the packet that began the connection, and tells it as control messages
// (ip(7), IP_PKTOPTIONS; RFC 2292, section 4.3).
std::uint8_t traffic_class_of_peer(int socket, int family) noexcept {
  const bool v6 = family == AF_INET6;
  const int level = v6 ? IPPROTO_IPV6 : IPPROTO_IP, on = 1;
  setsockopt(socket, level, v6 ? IPV6_RECVTCLASS : IP_RECVTOS, &on, sizeof(on));
  alignas(cmsghdr) char told[128];
  socklen_t size = sizeof(told);
  if (getsockopt(socket, level, v6 ? IPV6_2292PKTOPTIONS : IP_PKTOPTIONS, told, &size) != 0)
    return 0;
  msghdr m{};
  m.msg_control = told;
  m.msg_controllen = size;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c))
    if (c->cmsg_level == level && c->cmsg_type == (v6 ? IPV6_TCLASS : IP_TOS)) {
      int value = 0; // for TCP the kernel reports an int, also for IPv4
      std::memcpy(&value, CMSG_DATA(c), sizeof(value));
      return static_cast<std::uint8_t>(value);
    }
  return 0;
}

} // namespace soft
