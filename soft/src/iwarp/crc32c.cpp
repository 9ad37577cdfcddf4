// SPDX-License-Identifier: BSL-1.0
#include "iwarp/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#define SOFT_IWARP_SSE42 1
#include <nmmintrin.h>
#endif

namespace soft::iwarp {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78; // Castagnoli's, with reversed bits
constexpr std::size_t slices = 8;
using table = std::array<std::array<std::uint32_t, 256>, slices>;

/// `[k][b]` is the CRC of byte `b` followed by `k` zero bytes.
constexpr table make_table() noexcept {
  table t{};
  for (std::uint32_t b = 0; b != 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit != 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    t[0][b] = crc;
  }
  for (std::size_t k = 1; k != slices; ++k)
    for (std::size_t b = 0; b != 256; ++b)
      t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xff];
  return t;
}

constexpr table crc_table = make_table();

std::uint32_t get_little_endian(const std::byte* from) noexcept {
  return std::to_integer<std::uint32_t>(from[0]) | std::to_integer<std::uint32_t>(from[1]) << 8 |
         std::to_integer<std::uint32_t>(from[2]) << 16 |
         std::to_integer<std::uint32_t>(from[3]) << 24;
}

} // namespace

namespace detail {

std::uint32_t crc32c_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  const table& t = crc_table;
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= slices; left -= slices, p += slices) {
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

#ifdef SOFT_IWARP_SSE42

bool crc32c_has_instruction() noexcept { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) std::uint32_t
crc32c_by_instruction(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
#ifdef __x86_64__
  std::uint64_t wide = state;
  for (; left >= sizeof(std::uint64_t); left -= sizeof(std::uint64_t), p += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  state = static_cast<std::uint32_t>(wide);
#endif
  for (; left != 0; --left, ++p)
    state = _mm_crc32_u8(state, std::to_integer<std::uint8_t>(*p));
  return state;
}

#else

bool crc32c_has_instruction() noexcept { return false; }

std::uint32_t crc32c_by_instruction(std::uint32_t state,
                                    std::span<const std::byte> bytes) noexcept {
  return crc32c_by_table(state, bytes);
}

#endif

} // namespace detail

void crc32c::update(std::span<const std::byte> bytes) noexcept {
  static const auto implementation =
      detail::crc32c_has_instruction() ? detail::crc32c_by_instruction : detail::crc32c_by_table;
  state_ = implementation(state_, bytes);
}

void crc32c::encode(std::byte* to) const noexcept {
  const std::uint32_t crc = value();
  for (std::size_t i = 0; i != size; ++i)
    to[i] = static_cast<std::byte>((crc >> (8 * i)) & 0xff);
}

bool crc32c::matches(const std::byte* encoded) const noexcept {
  return get_little_endian(encoded) == value();
}

} // namespace soft::iwarp
