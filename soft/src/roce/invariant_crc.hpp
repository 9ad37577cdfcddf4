// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::roce {

/// The UDP port of RoCE v2, to which all packets go.
/// Source: InfiniBand specification, annex A17
inline constexpr std::uint16_t udp_port = 4791;

/// The invariant CRC, with which a packet ends. It covers all fields from the network header on
/// that routers do not change. The others count as ones: the traffic class, the hop limit, the flow
/// label of IPv6 or the checksum of IPv4, the checksum of UDP, and eight reserved bits behind the
/// partition key.
/// Source: InfiniBand specification, section 7.8.1; annex A17; the kernel's rxe_icrc.c
class invariant_crc {
public:
  static constexpr std::size_t size = 4;

  /// @param headers  the network header and the base transport header
  invariant_crc(std::span<const std::byte, 52> headers, std::uint16_t source_port) noexcept;
  /// Appends bytes that follow the base transport header, padding included.
  void update(std::span<const std::byte> bytes) noexcept;
  /// The bytes of the CRC in the packet.
  std::array<std::byte, size> encode() const noexcept;

private:
  std::uint32_t state_ = 0xffffffff;
};

} // namespace soft::roce
