// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

inline constexpr std::size_t crc_slices = 8; ///< bytes at a time
using crc_table = std::array<std::array<std::uint32_t, 256>, crc_slices>;

/// `[k][b]` is the CRC of byte `b` followed by `k` zero bytes.
constexpr crc_table make_crc_table(std::uint32_t polynomial) noexcept {
  crc_table t{};
  for (std::uint32_t b = 0; b != 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit != 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    t[0][b] = crc;
  }
  for (std::size_t k = 1; k != crc_slices; ++k)
    for (std::size_t b = 0; b != 256; ++b)
      t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xff];
  return t;
}

inline std::uint32_t get_little_endian(const std::byte* from) noexcept {
  return std::to_integer<std::uint32_t>(from[0]) | std::to_integer<std::uint32_t>(from[1]) << 8 |
         std::to_integer<std::uint32_t>(from[2]) << 16 |
         std::to_integer<std::uint32_t>(from[3]) << 24;
}

/// The state of a CRC of 32 bits after further bytes. The bits of the polynomial are reversed. The
/// first state is all ones, and the CRC is the complement of the last state.
template <std::uint32_t Polynomial>
std::uint32_t crc_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  static constexpr crc_table t = make_crc_table(Polynomial);
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= crc_slices; left -= crc_slices, p += crc_slices) {
    const std::uint32_t low = get_little_endian(p) ^ state;
    const std::uint32_t high = get_little_endian(p + 4);
    state = t[7][low & 0xff] ^ t[6][(low >> 8) & 0xff] ^ t[5][(low >> 16) & 0xff] ^ t[4][low >> 24];
    state ^=
        t[3][high & 0xff] ^ t[2][(high >> 8) & 0xff] ^ t[1][(high >> 16) & 0xff] ^ t[0][high >> 24];
  }
  for (; left != 0; --left, ++p)
    state = (state >> 8) ^ t[0][(state ^ std::to_integer<std::uint32_t>(*p)) & 0xff];
  return state;
}

} // namespace soft::iwarp
