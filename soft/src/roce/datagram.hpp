// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "roce/network_header.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace soft::roce {

/// A datagram of a queue pair of type UD, without its payload.
///
/// Its bytes are those of RoCE v2: the network header, the base transport header, the datagram's
/// transport header, the immediate data, the payload, and up to 3 bytes of padding. The UDP header
/// and the invariant CRC are left out: a packet between machines has them, and between the
/// processes of a machine the socket addresses the process, and loses no bits. Source: InfiniBand
/// specification, sections 9.2, 9.3.2, 9.3.6 and 9.8.3; annex A17
struct datagram {
  route way;                              ///< `encode` sets `way.bytes`.
  std::uint32_t from = 0, to = 0;         ///< Numbers of queue pairs, 24 bits.
  std::uint32_t q_key = 0;                ///< Of the receiver.
  bool solicited = false;                 //
  std::optional<std::uint32_t> immediate; ///< In network byte order.
  std::size_t payload = 0;                ///< Bytes.
};

/// The partition key of every message: full membership of the default partition.
inline constexpr std::uint16_t default_partition = 0xffff;

/// Bytes before the payload, at most and at least.
inline constexpr std::size_t max_datagram_header = 64, min_datagram_header = 60;
/// Bytes of the payload, at most.
inline constexpr std::size_t max_datagram_payload = 32768;

/// The bytes before and after the payload.
struct datagram_frame {
  std::array<std::byte, max_datagram_header> header{};
  std::size_t header_size = 0;
  std::size_t padding = 0; ///< Zero bytes after the payload.

  std::span<const std::byte> before() const noexcept { return {header.data(), header_size}; }
};

/// Precondition: the payload is at most `max_datagram_payload`; see `encode(const route&)`.
datagram_frame encode(const datagram& d) noexcept;

/// Reads a datagram. No result: a field is wrong, or does not fit the number of bytes. Reserved
/// bits and padding must be zero. The sequence number has no meaning.
/// @param payload  receives the part of `bytes` that is the payload
std::optional<datagram> decode(std::span<const std::byte> bytes,
                               std::span<const std::byte>& payload) noexcept;

/// Whether a GID is that of an address of this machine.
using is_own_gid = bool (*)(const ibv_gid&);

/// Reads a packet of UDP: the base transport header and all that follows it, with the invariant
/// CRC. No result: `decode` would have none; the packet claims to come from this machine, or is not
/// for it; or the CRC is wrong. The CRC is compared over IPv6 only. That of IPv4 covers the
/// identification, which a socket does not show.
///
/// Bits that a receiver ignores (InfiniBand specification, section 9.2) may be set: acknowledge
/// request and migration, which adapters and rxe set, and reserved ones. The function clears them.
/// A limited member of the default partition may send, too.
/// @param way      without `bytes`
/// @param packet   room for the network header, which the function writes, and the bytes of UDP.
///                 Without the CRC they are then what `decode` reads
/// @param payload  receives the part of `packet` that is the payload
std::optional<datagram> decode_packet(route way, std::uint16_t source_port,
                                      std::span<std::byte> packet, is_own_gid is_own,
                                      std::span<const std::byte>& payload) noexcept;

} // namespace soft::roce
