// SPDX-License-Identifier: BSL-1.0
#include "roce/datagram.hpp"

#include "iwarp/big_endian.hpp"
#include "roce/invariant_crc.hpp"

#include <algorithm>
#include <cstring>

namespace soft::roce {
namespace {

using iwarp::get_big_endian;
using iwarp::put_big_endian;

// Offsets from the beginning of the datagram.
constexpr std::size_t opcode_at = 40, flags_at = 41, partition_at = 42, to_at = 44,
                      sequence_at = 48, q_key_at = 52, from_at = 56, immediate_at = 60;
constexpr std::byte send_only{0x64}, send_only_with_immediate{0x65};
constexpr std::byte solicited_bit{0x80};
constexpr unsigned padding_shift = 4;
constexpr std::byte padding_bits{3 << padding_shift};
constexpr std::byte migration_bit{0x40};
constexpr std::uint16_t as_limited_member = 0x7fff; // of the default partition
constexpr std::uint32_t number_bits = 0xffffff;
// The UDP header and the invariant CRC, which `route::bytes` counts.
constexpr std::size_t udp_header = 8, left_out = udp_header + invariant_crc::size;
static_assert(max_datagram_header - 40 + max_datagram_payload + left_out <= max_route_bytes);

bool has_right_crc(std::span<const std::byte> packet, std::uint16_t source_port) noexcept {
  const auto covered = packet.first(packet.size() - invariant_crc::size);
  invariant_crc crc(covered.first<52>(), source_port);
  crc.update(covered.subspan(52));
  const auto right = crc.encode();
  return std::equal(right.begin(), right.end(), packet.end() - invariant_crc::size);
}

// Processes of this machine set none of these bits.
void clear_ignored(std::byte* h) noexcept {
  h[flags_at] &= ~migration_bit;
  h[to_at] = h[sequence_at] = h[from_at] = std::byte{0};
  if (get_big_endian<std::uint16_t>(h + partition_at) == as_limited_member)
    put_big_endian(h + partition_at, default_partition);
}

} // namespace

datagram_frame encode(const datagram& d) noexcept {
  datagram_frame f;
  f.header_size = d.immediate ? max_datagram_header : min_datagram_header;
  f.padding = (4 - d.payload % 4) % 4;
  route way = d.way;
  way.bytes = static_cast<std::uint16_t>(f.header_size - 40 + d.payload + f.padding + left_out);
  std::byte* const h = f.header.data();
  const network_header network = encode(way);
  std::copy(network.begin(), network.end(), h);
  h[opcode_at] = d.immediate ? send_only_with_immediate : send_only;
  h[flags_at] = (d.solicited ? solicited_bit : std::byte{0}) |
                static_cast<std::byte>(f.padding << padding_shift);
  put_big_endian(h + partition_at, default_partition);
  put_big_endian(h + to_at, d.to & number_bits);
  put_big_endian(h + q_key_at, d.q_key);
  put_big_endian(h + from_at, d.from & number_bits);
  if (d.immediate)
    std::memcpy(h + immediate_at, &*d.immediate, sizeof(*d.immediate));
  return f;
}

std::optional<datagram> decode(std::span<const std::byte> bytes,
                               std::span<const std::byte>& payload) noexcept {
  if (bytes.size() < min_datagram_header || bytes.size() % 4 != 0)
    return std::nullopt;
  const std::byte* const h = bytes.data();
  const auto way = decode(bytes.first<40>());
  if (!way || way->bytes != bytes.size() - 40 + left_out)
    return std::nullopt;
  const bool has_immediate = h[opcode_at] == send_only_with_immediate;
  const std::size_t header = has_immediate ? max_datagram_header : min_datagram_header;
  const std::size_t padding =
      std::to_integer<std::size_t>(h[flags_at] & padding_bits) >> padding_shift;
  const auto to = get_big_endian<std::uint32_t>(h + to_at),
             from = get_big_endian<std::uint32_t>(h + from_at);
  if ((!has_immediate && h[opcode_at] != send_only) ||
      (h[flags_at] & ~(solicited_bit | padding_bits)) != std::byte{0} ||
      get_big_endian<std::uint16_t>(h + partition_at) != default_partition ||
      (to & ~number_bits) != 0 || (from & ~number_bits) != 0 || h[sequence_at] != std::byte{0} ||
      bytes.size() < header + padding)
    return std::nullopt;
  datagram d;
  d.payload = bytes.size() - header - padding;
  const auto rest = bytes.subspan(header + d.payload);
  if (d.payload > max_datagram_payload ||
      std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; }))
    return std::nullopt;
  d.way = *way;
  d.to = to;
  d.from = from;
  d.q_key = get_big_endian<std::uint32_t>(h + q_key_at);
  d.solicited = (h[flags_at] & solicited_bit) != std::byte{0};
  if (has_immediate)
    std::memcpy(&d.immediate.emplace(), h + immediate_at, sizeof(std::uint32_t));
  payload = bytes.subspan(header, d.payload);
  return d;
}

std::optional<datagram> decode_packet(route way, std::uint16_t source_port,
                                      std::span<std::byte> packet, is_own_gid is_own,
                                      std::span<const std::byte>& payload) noexcept {
  if (packet.size() < min_datagram_header + invariant_crc::size ||
      packet.size() - 40 + udp_header > max_route_bytes || !is_own(way.destination) ||
      is_own(way.source))
    return std::nullopt;
  way.bytes = static_cast<std::uint16_t>(packet.size() - 40 + udp_header);
  const network_header network = encode(way);
  std::copy(network.begin(), network.end(), packet.begin());
  if (!is_ipv4(way.destination) && !has_right_crc(packet, source_port))
    return std::nullopt;
  clear_ignored(packet.data());
  return decode(packet.first(packet.size() - invariant_crc::size), payload);
}

} // namespace soft::roce
