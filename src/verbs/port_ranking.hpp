// SPDX-License-Identifier: BSL-1.0
// Which ports and which addresses are preferred: decisions on plain data, without a device.
#pragma once

#include <asio_rdma/device.hpp>
#include <boost/asio/ip/address.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ifaddrs;

namespace asio_rdma::detail {

/// The facts about a port, or about a device that could not be opened.
struct port_facts {
  std::string device;
  std::uint8_t port = 0; ///< 0 if the device could not be opened, for the reason `open_error`.
  error_code open_error;
  transport type = transport::other;
  bool active = false;
  bool infiniband = false;  ///< The link layer: InfiniBand, or Ethernet.
  bool is_software = false; ///< rxe or siw.
  std::uint32_t megabits = 0;
  std::optional<int> node; ///< The NUMA node of the adapter, if it is known.
  /// The addresses by which the port is reached in this network namespace, the best first.
  std::vector<asio::ip::address> addresses;
};

/// Puts the best port first, for a caller that runs on the NUMA node `node`. The order of ports
/// between which no fact decides stays.
void rank(std::vector<port_facts>& ports, std::optional<int> node);
/// Whether the port can carry connections now. In a ranking such ports precede all others.
bool is_usable(const port_facts& port) noexcept;
/// The facts of ranked ports in words, one line each, and the fact that decides between each port
/// and the next.
std::string explain(std::span<const port_facts> ranked, std::optional<int> node);

/// The rate of a port: `active_width` and `active_speed` of ibv_query_port(3). 0 if a value is not
/// known.
std::uint32_t megabits_of(std::uint8_t width, std::uint32_t speed) noexcept;

/// A network interface of this network namespace.
struct network_interface {
  std::uint32_t index = 0;
  std::string name;
  std::vector<asio::ip::address> addresses;
  std::vector<std::uint8_t> hardware = {}; ///< The hardware address: of IPoIB 20 bytes.
};
/// The interfaces in a list of getifaddrs(3), with their addresses.
std::vector<network_interface> interfaces_of(const ifaddrs* first);
/// The addresses by which rdma_cm reaches the port of a GID, on a device of type `type`. A GID of
/// RoCE is an address. The GID of an iWARP port begins with the hardware address of its interface.
/// The GID of an InfiniBand port is the end of the hardware address of each of its IPoIB interfaces
/// (RFC 4391, section 9.1.1), also of those that are made for a partition.
std::vector<asio::ip::address> addresses_of(const gid_entry& entry, transport type,
                                            std::span<const network_interface> here);
/// Whether the network interface of a GID is one of `here`. `name` is the interface's name in
/// sysfs; it may be empty. The kernel reports both number and name as they are in the interface's
/// own network namespace, so an interface of this one may have the same. The address decides then.
bool is_here(const gid_entry& entry, std::string_view name,
             std::span<const network_interface> here);

/// Whether `one` is the address `wanted`, which may lack its scope id.
bool matches(const asio::ip::address& one, const asio::ip::address& wanted);

} // namespace asio_rdma::detail
