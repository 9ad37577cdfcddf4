// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <optional>
#include <span>

namespace soft::roce {

/// The header of the network layer of a datagram, as the first 40 bytes of its receive show it: an
/// IPv6 header, or 20 zero bytes and an IPv4 header.
/// Source: InfiniBand specification, annex A17.4; RFC 791, section 3.1; RFC 8200, section 3
using network_header = std::array<std::byte, 40>;

/// The fields of a network header that differ between datagrams.
struct route {
  ibv_gid source{}, destination{}; ///< A GID of an IPv4 address is that address mapped to IPv6.
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint32_t flow_label = 0; ///< 20 bits; IPv4 has none.
  std::uint16_t bytes = 0;      ///< From the UDP header to the end.
};

/// The most that `route::bytes` may be.
inline constexpr std::uint16_t max_route_bytes = 65535 - 20;

bool is_ipv4(const ibv_gid& g) noexcept;
/// Whether one host may have the address: not 0, not multicast.
bool is_of_a_host(const ibv_gid& g) noexcept;

/// Writes a header. Precondition: both GIDs are of IPv4 addresses, or none.
network_header encode(const route& r) noexcept;

/// Reads a header. No result: it is none of a UDP datagram; its checksum is wrong; it has options
/// or is a fragment; or an address is one that no single host has.
std::optional<route> decode(std::span<const std::byte, 40> header) noexcept;

} // namespace soft::roce
