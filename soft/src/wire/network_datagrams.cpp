// SPDX-License-Identifier: BSL-1.0
// Datagrams to and from other machines: packets of RoCE v2 by UDP.
#include "device/queue_pair.hpp"
#include "engine/of_process.hpp"
#include "roce/datagram.hpp"
#include "roce/invariant_crc.hpp"
#include "wire/datagram_socket.hpp"
#include "wire/datagrams.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace soft {
namespace {

constexpr int packet_turns = 64;        // packets before other tasks get their turn
constexpr int receive_buffer = 4 << 20; // bytes; the kernel gives at most net.core.rmem_max
constexpr std::size_t network_size = sizeof(roce::network_header);

union udp_address {
  sockaddr base;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

socklen_t size_of(const udp_address& a) {
  return a.base.sa_family == AF_INET6 ? sizeof(a.v6) : sizeof(a.v4);
}
in_port_t& port_of(udp_address& a) {
  return a.base.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port;
}

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

// A socket at all addresses of a family; -1: errno. `a` becomes its address.
int make_udp(int family, std::uint16_t port, udp_address& a) {
  const int s = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s < 0)
    return -1;
  if (family == AF_INET6)
    set_option(s, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (port != 0) // sockets of the same user only: socket(7)
    set_option(s, SOL_SOCKET, SO_REUSEPORT, 1);
  a = {};
  a.base.sa_family = static_cast<sa_family_t>(family);
  port_of(a) = htons(port);
  socklen_t size = size_of(a);
  if (bind(s, &a.base, size) == 0 && getsockname(s, &a.base, &size) == 0)
    return s;
  close(s);
  return -1;
}

// The options of a message, cmsg(3).
class control_data {
public:
  template <class T>
  void add(int level, int type, const T& value) {
    cmsghdr h{};
    h.cmsg_len = CMSG_LEN(sizeof(T));
    h.cmsg_level = level;
    h.cmsg_type = type;
    std::memcpy(bytes_ + size_, &h, sizeof(h));
    std::memcpy(bytes_ + size_ + CMSG_LEN(0), &value, sizeof(T));
    size_ += CMSG_SPACE(sizeof(T));
  }
  void put_into(msghdr& m) {
    m.msg_control = bytes_;
    m.msg_controllen = size_;
  }

private:
  alignas(
      cmsghdr) std::byte bytes_[CMSG_SPACE(sizeof(in6_pktinfo)) + 2 * CMSG_SPACE(sizeof(int))]{};
  std::size_t size_ = 0;
};

// A hop limit of 0 leaves it to the route.
void set_way(const datagram_way& way, udp_address& to, control_data& o) {
  const ibv_global_route& r = way.attributes.grh;
  const int traffic_class = r.traffic_class, hop_limit = r.hop_limit;
  to = {};
  if (roce::is_ipv4(r.dgid)) {
    to.v4.sin_family = AF_INET;
    std::memcpy(&to.v4.sin_addr, r.dgid.raw + 12, 4);
    in_pktinfo from{};
    std::memcpy(&from.ipi_spec_dst, way.source.gid.raw + 12, 4);
    o.add(IPPROTO_IP, IP_PKTINFO, from);
    o.add(IPPROTO_IP, IP_TOS, traffic_class);
    if (hop_limit != 0)
      o.add(IPPROTO_IP, IP_TTL, hop_limit);
  } else {
    to.v6.sin6_family = AF_INET6;
    std::memcpy(&to.v6.sin6_addr, r.dgid.raw, 16);
    to.v6.sin6_scope_id = way.source.interface; // of a link-local address
    in6_pktinfo from{};
    std::memcpy(&from.ipi6_addr, way.source.gid.raw, 16);
    if (IN6_IS_ADDR_LINKLOCAL(&from.ipi6_addr))
      from.ipi6_ifindex = way.source.interface;
    o.add(IPPROTO_IPV6, IPV6_PKTINFO, from);
    o.add(IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
    if (hop_limit != 0)
      o.add(IPPROTO_IPV6, IPV6_HOPLIMIT, hop_limit);
  }
  port_of(to) = htons(roce::udp_port);
}

// The kernel writes the network header, and the invariant CRC covers its identification. A packet
// that must not be fragmented has 0 there if its socket is not connected (the kernel's
// include/net/ip.h, ip_select_ident_segs). A packet that is larger than the path's MTU fails with
// EMSGSIZE: IP_MTU_DISCOVER(2const).
struct network_sender {
  network_sender(int s, std::uint16_t p) : socket(s), port(p) {}
  static std::unique_ptr<network_sender> make(int family) {
    udp_address own;
    const int s = make_udp(family, 0, own);
    if (s < 0)
      return nullptr;
    if (family == AF_INET6)
      set_option(s, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    else
      set_option(s, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    set_option(s, SOL_SOCKET, SO_RCVBUF, 1); // nothing is received here
    return std::make_unique<network_sender>(s, ntohs(port_of(own)));
  }

  datagram_socket socket;
  const std::uint16_t port;
};

// A child after fork(2) must not keep its parent's sockets at the port: the kernel would give them
// packets after the parent's end.
constinit int at_port[2] = {-1, -1};

class network_receiver final : public descriptor {
public:
  // nullptr: the port is not free.
  static std::unique_ptr<network_receiver> make(int family) {
    udp_address own;
    const int s = make_udp(family, roce::udp_port, own);
    if (s < 0)
      return nullptr;
    set_option(s, SOL_SOCKET, SO_RCVBUF, receive_buffer);
    if (family == AF_INET6) {
      for (const int option : {IPV6_RECVPKTINFO, IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT})
        set_option(s, IPPROTO_IPV6, option, 1);
      // Adapters send no checksum of UDP. The invariant CRC is compared.
      set_option(s, IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
    } else {
      for (const int option : {IP_PKTINFO, IP_RECVTOS, IP_RECVTTL})
        set_option(s, IPPROTO_IP, option, 1);
    }
    auto made = std::make_unique<network_receiver>(s);
    if (engine::get().watch(s, EPOLLIN, *made) != 0)
      return nullptr;
    at_port[family == AF_INET6] = s;
    return made;
  }
  explicit network_receiver(int s) : socket_(s) {}
  ~network_receiver() {
    engine::get().forget(socket_);
    close(socket_);
  }

private:
  void ready(std::uint32_t events) override;

  const int socket_;
};

template <class T>
T value_of(const cmsghdr& c) {
  T value;
  std::memcpy(&value, CMSG_DATA(&c), sizeof(value));
  return value;
}

// The network header of a packet, as far as the socket tells it. The flow label of IPv6 is 0.
roce::route route_of(const udp_address& from, msghdr& m) {
  roce::route r;
  r.source = gid_of(from.base);
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    const auto is = [&](int level, int type) {
      return c->cmsg_level == level && c->cmsg_type == type;
    };
    if (is(IPPROTO_IP, IP_PKTINFO)) {
      udp_address to{};
      to.v4.sin_family = AF_INET;
      to.v4.sin_addr = value_of<in_pktinfo>(*c).ipi_addr;
      r.destination = gid_of(to.base);
    } else if (is(IPPROTO_IPV6, IPV6_PKTINFO)) {
      const auto info = value_of<in6_pktinfo>(*c);
      std::memcpy(r.destination.raw, &info.ipi6_addr, 16);
    } else if (is(IPPROTO_IP, IP_TOS)) {
      r.traffic_class = value_of<std::uint8_t>(*c);
    } else if (is(IPPROTO_IPV6, IPV6_TCLASS)) {
      r.traffic_class = static_cast<std::uint8_t>(value_of<int>(*c));
    } else if (is(IPPROTO_IP, IP_TTL) || is(IPPROTO_IPV6, IPV6_HOPLIMIT)) {
      r.hop_limit = static_cast<std::uint8_t>(value_of<int>(*c));
    }
  }
  return r;
}

void network_receiver::ready(std::uint32_t) {
  static auto& buffer = *new std::array<std::byte, 1 << 16>; // the engine's thread alone receives
  for (int turn = 0; turn < packet_turns; ++turn) {
    udp_address from{};
    iovec v{buffer.data() + network_size, buffer.size() - network_size};
    alignas(cmsghdr) std::byte control[256];
    msghdr m{};
    m.msg_name = &from;
    m.msg_namelen = sizeof(from);
    m.msg_iov = &v;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(socket_, &m, MSG_DONTWAIT);
    if (n < 0 && errno != EINTR)
      return;
    if (n < 0 || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
      continue;
    const std::span packet(buffer.data(), network_size + static_cast<std::size_t>(n));
    std::span<const std::byte> payload;
    const auto d =
        roce::decode_packet(route_of(from, m), ntohs(port_of(from)), packet, is_here, payload);
    const auto whole = packet.first(packet.size() - roce::invariant_crc::size);
    if (d && !deliver(*d, whole, payload))
      pass_on(d->to, whole);
  }
}

struct network {
  std::unique_ptr<network_sender> sender;
  std::unique_ptr<network_receiver> receiver;
};
struct networks {
  networks() noexcept {
    for (int& s : at_port)
      if (s >= 0)
        close(std::exchange(s, -1));
  }
  network ipv4, ipv6;
};
network& network_of(int family) {
  auto& all = of_process<networks>();
  return family == AF_INET6 ? all.ipv6 : all.ipv4;
}

} // namespace

bool send_to_network(queue_pair& from, const datagram_way& way, const spans& whole) {
  udp_address to;
  control_data o;
  set_way(way, to, o);
  const int family = to.base.sa_family;
  network& n = network_of(family);
  if (!n.sender)
    n.sender = network_sender::make(family);
  if (!n.sender)
    return true;
  const std::span header(whole.parts[0].data, whole.parts[0].bytes);
  roce::invariant_crc crc(header.first<52>(), n.sender->port);
  crc.update(header.subspan(52));
  iovec v[std::size(whole.parts) + 1];
  v[0] = {header.data() + network_size, header.size() - network_size};
  for (unsigned i = 1; i < whole.count; ++i) {
    crc.update({whole.parts[i].data, whole.parts[i].bytes});
    v[i] = {whole.parts[i].data, whole.parts[i].bytes};
  }
  auto end = crc.encode();
  v[whole.count] = {end.data(), end.size()};
  msghdr m{};
  m.msg_name = &to;
  m.msg_namelen = size_of(to);
  m.msg_iov = v;
  m.msg_iovlen = whole.count + 1;
  o.put_into(m);
  return n.sender->socket.send(from, m) != datagram_socket::result::behind;
}

void hear_network() {
  for (const int family : {AF_INET, AF_INET6}) {
    network& n = network_of(family);
    if (!n.receiver)
      n.receiver = network_receiver::make(family);
  }
}

} // namespace soft
