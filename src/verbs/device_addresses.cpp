// SPDX-License-Identifier: BSL-1.0
// The GIDs and the IP addresses of a device, and their order.
#include <asio_rdma/device.hpp>

#include "verbs/port_ranking.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>

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

std::optional<asio::ip::address> address_of(const sockaddr& from) {
  if (from.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    return asio::ip::address_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (from.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    asio::ip::address_v6::bytes_type bytes;
    std::memcpy(bytes.data(), v6.sin6_addr.s6_addr, bytes.size());
    return scoped(bytes, v6.sin6_scope_id);
  }
  return {};
}

// The interfaces of this network namespace; none if they cannot be read.
std::vector<detail::network_interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0)
    return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> freed(first, freeifaddrs);
  return detail::interfaces_of(first);
}

// The name of the network interface of a GID; empty if it cannot be read.
std::string interface_name(const device& d, const gid_entry& e) {
  std::string result;
  std::ifstream("/sys/class/infiniband/" + d.name() + "/ports/" + std::to_string(e.port) +
                "/gid_attrs/ndevs/" + std::to_string(e.index)) >>
      result;
  return result;
}

} // namespace

std::vector<detail::network_interface> detail::interfaces_of(const ifaddrs* first) {
  std::vector<network_interface> result;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr)
      continue;
    // An IPv4 address may have a label, such as "eth0:1", in place of the interface's name.
    const std::string_view label = i->ifa_name;
    const std::string name(label.substr(0, label.find(':')));
    auto found = std::find_if(result.begin(), result.end(),
                              [&name](const auto& known) { return known.name == name; });
    if (found == result.end()) {
      network_interface fresh;
      fresh.name = name;
      fresh.index = if_nametoindex(name.c_str());
      found = result.insert(result.end(), fresh);
    }
    if (const auto address = address_of(*i->ifa_addr)) {
      found->addresses.push_back(*address);
    } else if (i->ifa_addr->sa_family == AF_PACKET) {
      // `sll_addr` has 8 bytes; getifaddrs(3) makes room for an address that is longer.
      const auto& link = reinterpret_cast<const sockaddr_ll&>(*i->ifa_addr);
      const auto* const bytes =
          reinterpret_cast<const std::uint8_t*>(i->ifa_addr) + offsetof(sockaddr_ll, sll_addr);
      found->hardware.assign(bytes, bytes + link.sll_halen);
    }
  }
  return result;
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
  const auto here = interfaces();
  const auto foreign = std::stable_partition(result.begin(), result.end(), [&](const gid_entry& e) {
    return here.empty() || detail::is_here(e, interface_name(*this, e), here);
  });
  // A program may use a device whose interface is in another network namespace, without rdma_cm.
  if (foreign != result.begin())
    result.erase(foreign, result.end());
  std::stable_sort(result.begin(), result.end(), detail::better_gid);
  return result;
}

namespace {

std::vector<asio::ip::address> addresses_of(const device& d, const std::vector<gid_entry>& gids) {
  std::vector<asio::ip::address> result;
  const auto here = interfaces();
  for (const gid_entry& e : gids) {
    for (const auto& a : detail::addresses_of(e, d.type(), here))
      if (std::find(result.begin(), result.end(), a) == result.end())
        result.push_back(a);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return address_rank(a) < address_rank(b); });
  return result;
}

} // namespace

std::optional<gid_entry> device::best_gid(std::uint8_t port) const {
  for (const gid_entry& e : gids())
    if (e.port == port)
      return e;
  return {};
}

std::optional<gid_entry> device::best_gid(const asio::ip::address& local) const {
  const auto here = interfaces();
  for (const gid_entry& e : gids()) {
    auto own = detail::addresses_of(e, type(), here);
    own.push_back(e.address());
    if (std::any_of(own.begin(), own.end(),
                    [&](const auto& a) { return detail::matches(a, local); }))
      return e;
  }
  return {};
}

std::vector<asio::ip::address> device::addresses() const { return addresses_of(*this, gids()); }

std::vector<asio::ip::address> device::addresses(std::uint8_t port) const {
  auto own = gids();
  std::erase_if(own, [port](const gid_entry& e) { return e.port != port; });
  return addresses_of(*this, own);
}

} // namespace asio_rdma
