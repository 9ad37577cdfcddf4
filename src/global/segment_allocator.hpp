// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/size_classes.hpp"

#include <array>
#include <cassert>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace asio_rdma::detail {

/// An allocator for the bytes of a segment, by offset: from a pointer that only increases, and from
/// freed blocks, by size class. All its state is outside of the segment, so peers that write there
/// cannot corrupt it. Not thread-safe.
class segment_allocator {
public:
  static constexpr std::uint64_t max_alignment = page_bytes;

  /// Allocates from the bytes between `begin` and `end`.
  segment_allocator(std::uint64_t begin, std::uint64_t end) noexcept : next_(begin), end_(end) {
    assert(begin <= end);
  }

  /// Returns nothing if there is no room, if `bytes` is 0, or if `alignment` is not a power of two
  /// up to `max_alignment`.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment);
  /// Returns false if no allocated block begins at `offset`, or if it is kept.
  bool free(std::uint64_t offset);
  /// Sets whether the block that begins at `offset`, which is in use, is kept.
  void keep(std::uint64_t offset, bool kept = true) noexcept;

  std::size_t blocks_in_use() const noexcept { return live_.size(); }

private:
  // Four to each doubling, like those of the pool, up to 2^44 bytes.
  static constexpr std::size_t classes = 156;

  std::uint64_t next_;
  std::uint64_t end_;
  std::array<std::vector<std::uint64_t>, classes> free_;
  struct block {
    std::uint8_t size_class;
    bool kept;
  };
  std::unordered_map<std::uint64_t, block> live_; // by offset
};

} // namespace asio_rdma::detail
