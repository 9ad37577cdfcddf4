// SPDX-License-Identifier: BSL-1.0
#include "roce/invariant_crc.hpp"

#include "iwarp/big_endian.hpp"
#include "iwarp/crc_by_table.hpp"

#include <algorithm>

namespace soft::roce {
namespace {

using iwarp::get_big_endian;
using iwarp::put_big_endian;

constexpr std::uint32_t polynomial = 0xedb88320; // that of Ethernet, with reversed bits
constexpr std::byte ones{0xff};
// Bytes of ones in place of InfiniBand's local route header, which a packet of RoCE has not.
constexpr std::size_t route_size = 8;
constexpr std::size_t network_size = 40, ipv4_header_size = 20, udp_size = 8, transport_size = 12;

} // namespace

invariant_crc::invariant_crc(std::span<const std::byte, 52> headers,
                             std::uint16_t source_port) noexcept {
  const bool is_v4 = headers[0] == std::byte{0};
  const std::size_t ip_size = is_v4 ? ipv4_header_size : network_size;
  std::byte all[route_size + network_size + udp_size + transport_size];
  std::fill(std::begin(all), std::end(all), ones);
  std::byte* const ip = all + route_size;
  std::copy_n(headers.data() + network_size - ip_size, ip_size, ip);
  std::uint16_t bytes = 0; // from the UDP header to the end
  if (is_v4) {
    bytes = static_cast<std::uint16_t>(get_big_endian<std::uint16_t>(ip + 2) - ipv4_header_size);
    ip[1] = ip[8] = ip[10] = ip[11] = ones;
  } else {
    bytes = get_big_endian<std::uint16_t>(ip + 4);
    ip[0] |= std::byte{0x0f};
    ip[1] = ip[2] = ip[3] = ip[7] = ones;
  }
  std::byte* const udp = ip + ip_size;
  put_big_endian(udp, source_port);
  put_big_endian(udp + 2, udp_port);
  put_big_endian(udp + 4, bytes);
  std::byte* const transport = udp + udp_size;
  std::copy_n(headers.data() + network_size, transport_size, transport);
  transport[4] = ones;
  update({all, static_cast<std::size_t>(transport + transport_size - all)});
}

void invariant_crc::update(std::span<const std::byte> bytes) noexcept {
  state_ = iwarp::crc_by_table<polynomial>(state_, bytes);
}

std::array<std::byte, invariant_crc::size> invariant_crc::encode() const noexcept {
  std::array<std::byte, size> bytes;
  for (std::size_t i = 0; i != size; ++i)
    bytes[i] = static_cast<std::byte>((~state_ >> (8 * i)) & 0xff);
  return bytes;
}

} // namespace soft::roce
