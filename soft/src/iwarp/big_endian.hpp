// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace soft::iwarp {

/// Writes `sizeof(T)` bytes, the most significant byte first.
template <std::unsigned_integral T>
constexpr void put_big_endian(std::byte* to, T value) noexcept {
  for (std::size_t i = 0; i != sizeof(T); ++i)
    to[i] = static_cast<std::byte>((value >> (8 * (sizeof(T) - 1 - i))) & 0xff);
}

/// Reads `sizeof(T)` bytes, the most significant byte first.
template <std::unsigned_integral T>
constexpr T get_big_endian(const std::byte* from) noexcept {
  T value = 0;
  for (std::size_t i = 0; i != sizeof(T); ++i)
    value = static_cast<T>((std::uint64_t(value) << 8) | std::to_integer<std::uint64_t>(from[i]));
  return value;
}

} // namespace soft::iwarp
