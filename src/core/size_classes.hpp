// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>

// The sizes of small blocks: multiples of a cache line, four to each doubling. Of a block over 256
// bytes at most a fifth is unused.

namespace asio_rdma::detail {

inline constexpr std::size_t page_bytes = 4096;
inline constexpr std::size_t huge_page = std::size_t(2) << 20;
inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t largest_small = std::size_t(64) * 1024;
inline constexpr std::size_t size_classes = 36;

constexpr std::size_t round_up(std::size_t n, std::size_t multiple) noexcept {
  assert(multiple != 0);
  return (n + multiple - 1) / multiple * multiple;
}

/// The size of the blocks of a class, in bytes.
constexpr std::size_t class_bytes(std::size_t index) noexcept {
  if (index < 4)
    return cache_line * (index + 1);
  return (5 + index % 4) << (6 + (index - 4) / 4);
}

/// The class of the smallest blocks with at least `bytes` bytes, from 1 to `largest_small`.
constexpr std::size_t class_of(std::size_t bytes) noexcept {
  assert(bytes != 0);
  if (bytes <= 4 * cache_line)
    return (bytes - 1) / cache_line;
  const auto exponent = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;
  return 4 * (exponent - 7) + (((bytes - 1) >> (exponent - 2)) & 3);
}

/// The class of the smallest blocks with at least `bytes` bytes and an alignment, which is a power
/// of two up to a page. A slab begins on a page boundary, so its blocks are aligned as their size
/// is.
constexpr std::size_t class_of(std::size_t bytes, std::size_t alignment) noexcept {
  assert(std::has_single_bit(alignment) && alignment <= page_bytes);
  std::size_t index = class_of(bytes);
  while (class_bytes(index) % alignment != 0)
    ++index;
  return index;
}

/// The size of a slab of blocks of one class, in bytes.
constexpr std::size_t slab_bytes(std::size_t index) noexcept {
  assert(index < size_classes);
  const std::size_t bytes = class_bytes(index);
  return bytes <= largest_small / 4 ? largest_small : 4 * bytes;
}

} // namespace asio_rdma::detail
