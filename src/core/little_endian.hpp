// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/endian/conversion.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>

namespace asio_rdma::detail {

/// Writes a number in little-endian order.
template <std::unsigned_integral T>
void put(std::byte* to, T value) noexcept {
  boost::endian::endian_store<T, sizeof(T), boost::endian::order::little>(
      reinterpret_cast<unsigned char*>(to), value);
}

/// Reads a number in little-endian order.
template <std::unsigned_integral T>
T get(const std::byte* from) noexcept {
  return boost::endian::endian_load<T, sizeof(T), boost::endian::order::little>(
      reinterpret_cast<const unsigned char*>(from));
}

inline bool all_zero(std::span<const std::byte> bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte(); });
}

} // namespace asio_rdma::detail
