// SPDX-License-Identifier: BSL-1.0
#include "global/segment_allocator.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace asio_rdma::detail {

std::optional<std::uint64_t> segment_allocator::allocate(std::uint64_t bytes,
                                                         std::uint64_t alignment) {
  if (bytes == 0 || bytes > end_ || !std::has_single_bit(alignment) || alignment > max_alignment)
    return {};
  const std::size_t least = class_of(bytes, alignment);
  assert(least < classes);
  const std::uint64_t size = class_bytes(least);
  // Each block of a class is aligned to the class's size, so any free block of the class fits.
  const std::uint64_t natural = std::min(size & (0 - size), max_alignment);
  const std::uint64_t at = round_up(next_, natural);
  std::size_t chosen = least;
  if (free_[least].empty() && (at > end_ || size > end_ - at)) {
    while (++chosen != classes && (free_[chosen].empty() || class_bytes(chosen) % alignment != 0))
      continue;
    if (chosen == classes)
      return {};
  }
  const bool fresh = free_[chosen].empty();
  const std::uint64_t result = fresh ? at : free_[chosen].back();
  live_.emplace(result, block{static_cast<std::uint8_t>(chosen), false});
  if (fresh)
    next_ = at + size;
  else
    free_[chosen].pop_back();
  return result;
}

bool segment_allocator::free(std::uint64_t offset) {
  const auto found = live_.find(offset);
  if (found == live_.end() || found->second.kept)
    return false;
  assert(found->second.size_class < classes && offset < next_);
  free_[found->second.size_class].push_back(offset);
  live_.erase(found);
  return true;
}

void segment_allocator::keep(std::uint64_t offset, bool kept) noexcept {
  const auto found = live_.find(offset);
  assert(found != live_.end());
  found->second.kept = kept;
}

} // namespace asio_rdma::detail
