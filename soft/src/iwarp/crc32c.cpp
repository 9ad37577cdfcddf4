// SPDX-License-Identifier: BSL-1.0
#include "iwarp/crc32c.hpp"

#include "iwarp/crc_by_table.hpp"

#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#define SOFT_IWARP_SSE42 1
#include <nmmintrin.h>
#endif

namespace soft::iwarp {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78; // Castagnoli's, with reversed bits

} // namespace

namespace detail {

std::uint32_t crc32c_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  return crc_by_table<polynomial>(state, bytes);
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
