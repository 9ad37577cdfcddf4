// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/size_classes.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace asio_rdma::detail {

/// Hands out the bytes of a segment by offset: from a pointer that only rises, and from what was
/// given back, by size class. All it knows stands outside of the segment, so that what the peers
/// write there cannot mislead it. Not safe from several threads.
class segment_allocator {
public:
  static constexpr std::uint64_t max_alignment = page_bytes;

  /// Of the bytes from `begin` to `end`.
  segment_allocator(std::uint64_t begin, std::uint64_t end) noexcept : next_(begin), end_(end) {}

  /// Nothing if there is no room, for no bytes, and for an alignment that is no power of two up to
  /// `max_alignment`.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment);
  /// False if nothing that was allocated begins there.
  bool free(std::uint64_t offset);

  std::size_t blocks_in_use() const noexcept { return live_.size(); }

private:
  // Four to each doubling, as those of the pool, up to 2^44 bytes.
  static constexpr std::size_t classes = 156;

  std::uint64_t next_;
  std::uint64_t end_;
  std::array<std::vector<std::uint64_t>, classes> free_;
  std::unordered_map<std::uint64_t, std::uint8_t> live_; // the class of each block in use
};

} // namespace asio_rdma::detail
