// SPDX-License-Identifier: BSL-1.0
// Local addresses and ports: rdma_bind_addr(3), rdma_resolve_addr(3). A port is kept by a socket
// that is bound to it, of TCP or of UDP, so that the kernel's rules hold, for all processes.
#include "cm/addresses.hpp"

#include "engine/of_process.hpp"
#include "roce/network_header.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace soft {
namespace {

struct bound_ids {
  std::vector<cm_id*> all;
};
std::vector<cm_id*>& bound() { return of_process<bound_ids>().all; }

} // namespace

socklen_t size_of(const sockaddr& a) noexcept {
  return a.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool is_any(const sockaddr& a) noexcept {
  if (a.sa_family == AF_INET6)
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr);
  return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr == INADDR_ANY;
}

in_port_t& port_of(sockaddr& a) noexcept {
  return a.sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(a).sin6_port
                                 : reinterpret_cast<sockaddr_in&>(a).sin_port;
}

// rdma_cm has no time in which a port waits for late segments. Of UDP, the option would share it.
void set_sharing(int fd, const cm_id& id) {
  const int yes = !id.is_datagram() || id.reuse_address;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

int bind_port(cm_id& id, const sockaddr& address) {
  if (address.sa_family != AF_INET && address.sa_family != AF_INET6)
    return EINVAL;
  id.route.addr.src_storage = {};
  std::memcpy(&id.route.addr.src_storage, &address, size_of(address));
  if (port_of(id.route.addr.src_addr) != 0)
    if (const int error = check_port(id, false)) {
      id.route.addr.src_storage = {};
      return error;
    }
  const int type = id.is_datagram() ? SOCK_DGRAM : SOCK_STREAM;
  const int fd = socket(address.sa_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return errno;
  set_sharing(fd, id);
  if (address.sa_family == AF_INET6)
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &id.only_v6, sizeof(id.only_v6));
  sockaddr_storage given{};
  socklen_t size = sizeof(given);
  if (bind(fd, &address, size_of(address)) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&given), &size) != 0) {
    const int error = errno;
    close(fd);
    id.route.addr.src_storage = {};
    return error;
  }
  id.port_holder = fd;
  id.route.addr.src_storage = given;
  bound().push_back(&id);
  return 0;
}

void release_port(cm_id& id) {
  auto& all = bound();
  all.erase(std::remove(all.begin(), all.end(), &id), all.end());
  if (id.port_holder >= 0)
    close(std::exchange(id.port_holder, -1));
}

int check_port(cm_id& id, bool listens) {
  sockaddr& own = id.route.addr.src_addr;
  for (cm_id* const other : bound()) {
    sockaddr& theirs = other->route.addr.src_addr;
    const bool shared =
        !listens && id.reuse_address && other->reuse_address && other->state != cm_state::listening;
    if (other != &id && other->is_datagram() == id.is_datagram() && !shared && overlap(own, theirs))
      return is_any(own) || is_any(theirs) ? EADDRNOTAVAIL : EADDRINUSE;
  }
  return 0;
}

bool overlap(sockaddr& a, sockaddr& b) noexcept {
  if (port_of(a) != port_of(b))
    return false;
  if (is_any(a) || is_any(b))
    return a.sa_family == b.sa_family;
  return is_same(gid_of(a), gid_of(b));
}

// A listener at any address gets what is sent to an address of this machine.
bool serves(cm_id& listener, sockaddr& address) {
  sockaddr& own = listener.route.addr.src_addr;
  if (!is_any(own))
    return overlap(own, address);
  return port_of(own) == port_of(address) && (is_any(address) || is_here(gid_of(address))) &&
         (own.sa_family == address.sa_family ||
          (own.sa_family == AF_INET6 && listener.only_v6 == 0));
}

bool takes_from(const cm_id& listener, const sockaddr& from) noexcept {
  return listener.only_v6 == 0 || listener.route.addr.src_addr.sa_family != AF_INET6 ||
         !roce::is_ipv4(gid_of(from));
}

int find_route(sockaddr& from, const sockaddr& to) {
  const int fd = socket(to.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return errno;
  const in_port_t port = std::exchange(port_of(from), in_port_t{0});
  sockaddr_storage with_port{};
  std::memcpy(&with_port, &to, size_of(to));
  if (port_of(reinterpret_cast<sockaddr&>(with_port)) == 0)
    port_of(reinterpret_cast<sockaddr&>(with_port)) = htons(1);
  socklen_t size = size_of(to);
  const bool found = bind(fd, &from, size) == 0 &&
                     connect(fd, reinterpret_cast<sockaddr*>(&with_port), size) == 0 &&
                     getsockname(fd, &from, &size) == 0;
  const int error = found ? 0 : errno;
  close(fd);
  port_of(from) = port;
  return error;
}

} // namespace soft
