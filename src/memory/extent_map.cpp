// SPDX-License-Identifier: BSL-1.0
#include "memory/extent_map.hpp"

#include <bit>
#include <cassert>
#include <limits>

namespace asio_rdma::detail {

extent_map::extent_map(std::uint32_t pages) : pages_(pages) {
  heads_.fill(none);
  if (pages != 0)
    link(0, pages);
}

// Each doubling has four bins; lengths of 1 to 3 pages have one each.
std::size_t extent_map::bin_of(std::uint32_t pages) noexcept {
  assert(pages != 0);
  if (pages < 4)
    return pages;
  const auto exponent = static_cast<std::size_t>(std::bit_width(pages)) - 1;
  return 4 * (exponent - 1) + ((pages >> (exponent - 2)) & 3);
}

void extent_map::mark(std::uint32_t first, std::uint32_t length, bool free) noexcept {
  assert(length != 0 && first < pages() && length <= pages() - first);
  for (const std::uint32_t p : {first, first + length - 1}) {
    pages_[p].length = length;
    pages_[p].free = free;
  }
}

void extent_map::link(std::uint32_t first, std::uint32_t length) noexcept {
  mark(first, length, true);
  const std::size_t bin = bin_of(length);
  page& p = pages_[first];
  p.previous = none;
  p.next = heads_[bin];
  if (p.next != none)
    pages_[p.next].previous = first;
  heads_[bin] = first;
  filled_[bin / 64] |= std::uint64_t(1) << (bin % 64);
}

void extent_map::unlink(std::uint32_t first) noexcept {
  const page& p = pages_[first];
  assert(p.free && p.length <= pages() - first);
  if (p.next != none)
    pages_[p.next].previous = p.previous;
  if (p.previous != none) {
    pages_[p.previous].next = p.next;
    return;
  }
  const std::size_t bin = bin_of(p.length);
  assert(heads_[bin] == first);
  heads_[bin] = p.next;
  if (p.next == none)
    filled_[bin / 64] &= ~(std::uint64_t(1) << (bin % 64));
}

std::uint32_t extent_map::look_in(std::size_t bin, std::uint32_t pages,
                                  std::size_t most) const noexcept {
  for (std::uint32_t p = heads_[bin]; p != none && most != 0; p = pages_[p].next, --most)
    if (pages_[p].length >= pages)
      return p;
  return none;
}

// This length's bin may contain runs that are too short; higher bins do not.
std::uint32_t extent_map::find(std::uint32_t pages) const noexcept {
  const std::size_t bin = bin_of(pages);
  if (const std::uint32_t near = look_in(bin, pages, 8); near != none)
    return near;
  for (std::size_t word = (bin + 1) / 64; word < filled_.size(); ++word) {
    std::uint64_t bits = filled_[word];
    if (word == (bin + 1) / 64)
      bits &= ~std::uint64_t(0) << ((bin + 1) % 64);
    if (bits != 0)
      return heads_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
  }
  return look_in(bin, pages, std::numeric_limits<std::size_t>::max());
}

std::uint32_t extent_map::allocate(std::uint32_t pages) noexcept {
  const std::uint32_t first = find(pages);
  if (first == none)
    return none;
  const std::uint32_t length = pages_[first].length;
  unlink(first);
  mark(first, pages, false);
  if (length > pages)
    link(first + pages, length - pages);
  used_ += pages;
  return first;
}

void extent_map::release(std::uint32_t first) noexcept {
  assert(first < pages() && !pages_[first].free && pages_[first].length != 0);
  std::uint32_t length = pages_[first].length;
  assert(used_ >= length);
  used_ -= length;
  if (const std::uint32_t behind = first + length; behind < pages() && pages_[behind].free) {
    length += pages_[behind].length;
    unlink(behind);
  }
  if (first != 0 && pages_[first - 1].free) {
    const std::uint32_t before = pages_[first - 1].length;
    first -= before;
    length += before;
    unlink(first);
  }
  link(first, length);
}

} // namespace asio_rdma::detail
