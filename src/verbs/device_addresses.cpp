// SPDX-License-Identifier: BSL-1.0
// The GIDs and the IP addresses of a device, and their order.
#include "verbs/device_addresses.hpp"

#include <asio_rdma/device.hpp>

#include <algorithm>
#include <cstring>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <netinet/in.h>

namespace asio_rdma {
namespace {

int address_rank(const asio::ip::address& a) {
  return a.is_v4() ? 0 : a.to_v6().is_link_local() ? 2 : 1;
}

int gid_rank(const gid_entry& e) {
  return (e.type == gid_entry::kind::roce_v1 ? 3 : 0) + address_rank(e.address());
}

// A link-local address is reachable only with the interface of its link.
asio::ip::address_v6 scoped(const asio::ip::address_v6::bytes_type& bytes,
                            std::uint32_t interface_index) {
  asio::ip::address_v6 result(bytes);
  if (result.is_link_local())
    result.scope_id(interface_index);
  return result;
}

// The addresses of the interface with this hardware address.
std::vector<asio::ip::address> addresses_of_hardware(const std::uint8_t* hardware) {
  std::vector<asio::ip::address> result;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0)
    return result;
  std::vector<std::string_view> names;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_PACKET)
      continue;
    const auto* link = reinterpret_cast<const sockaddr_ll*>(i->ifa_addr);
    if (link->sll_halen == 6 && std::memcmp(link->sll_addr, hardware, 6) == 0)
      names.emplace_back(i->ifa_name);
  }
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || std::find(names.begin(), names.end(), i->ifa_name) == names.end())
      continue;
    if (i->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      result.push_back(asio::ip::address_v4(ntohl(v4->sin_addr.s_addr)));
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      asio::ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), v6->sin6_addr.s6_addr, bytes.size());
      result.push_back(scoped(bytes, v6->sin6_scope_id));
    }
  }
  freeifaddrs(first);
  return result;
}

} // namespace

bool detail::matches(const asio::ip::address& one, const asio::ip::address& wanted) {
  if (one.is_v6() && wanted.is_v6() && wanted.to_v6().scope_id() == 0)
    return one.to_v6().to_bytes() == wanted.to_v6().to_bytes();
  return one == wanted;
}

asio::ip::address gid_entry::address() const {
  asio::ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  const asio::ip::address_v6 v6 = scoped(bytes, interface_index);
  if (v6.is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, v6);
  return v6;
}

bool detail::better_gid(const gid_entry& a, const gid_entry& b) {
  return gid_rank(a) < gid_rank(b);
}

std::vector<gid_entry> device::gids() const {
  std::vector<gid_entry> result;
  std::size_t most = 0;
  for (std::uint8_t n = 1; n <= attributes().phys_port_cnt; ++n) {
    error_code ec;
    most += static_cast<std::size_t>(std::max(port(n, ec).gid_tbl_len, 0));
  }
  std::vector<ibv_gid_entry> table(most);
  const auto found = ibv_query_gid_table(native_handle(), table.data(), table.size(), 0);
  for (ssize_t i = 0; i < found; ++i) {
    const ibv_gid_entry& from = table[static_cast<std::size_t>(i)];
    gid_entry to;
    to.gid = from.gid;
    to.port = static_cast<std::uint8_t>(from.port_num);
    to.index = from.gid_index;
    to.interface_index = from.ndev_ifindex;
    to.type = from.gid_type == IBV_GID_TYPE_ROCE_V2   ? gid_entry::kind::roce_v2
              : from.gid_type == IBV_GID_TYPE_ROCE_V1 ? gid_entry::kind::roce_v1
                                                      : gid_entry::kind::infiniband;
    result.push_back(to);
  }
  std::stable_sort(result.begin(), result.end(), detail::better_gid);
  return result;
}

std::optional<gid_entry> device::best_gid(std::uint8_t port) const {
  for (const gid_entry& e : gids())
    if (e.port == port)
      return e;
  return {};
}

std::optional<gid_entry> device::best_gid(const asio::ip::address& local) const {
  for (const gid_entry& e : gids())
    if (detail::matches(e.address(), local))
      return e;
  return {};
}

std::vector<asio::ip::address> device::addresses() const {
  std::vector<asio::ip::address> result;
  for (const gid_entry& e : gids()) {
    // An iWARP port has one GID, which begins with its hardware address (RFC 5040 knows none).
    const auto found =
        type() == transport::iwarp ? addresses_of_hardware(e.gid.raw) : std::vector{e.address()};
    for (const auto& a : found)
      if (std::find(result.begin(), result.end(), a) == result.end())
        result.push_back(a);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return address_rank(a) < address_rank(b); });
  return result;
}

} // namespace asio_rdma
