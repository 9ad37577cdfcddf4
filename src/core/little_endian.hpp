// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>

namespace asio_rdma::detail {

/// Writes a number in little-endian order.
template <std::unsigned_integral T>
void put(std::byte* to, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    to[i] = static_cast<std::byte>(value >> (8 * i));
}

/// Reads a number in little-endian order.
template <std::unsigned_integral T>
T get(const std::byte* from) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(from[i]) << (8 * i)));
  return value;
}

inline bool all_zero(std::span<const std::byte> bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte(); });
}

} // namespace asio_rdma::detail
