// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace asio_rdma::detail {

/// The used and the free pages of an arena. Runs of pages are allocated by good fit, and a released
/// run is merged with its free neighbours. Only the constructor allocates memory, so `release`
/// cannot fail. Pages are numbers; the arena's memory is not accessed.
class extent_map {
public:
  static constexpr std::uint32_t none = static_cast<std::uint32_t>(-1);

  explicit extent_map(std::uint32_t pages);

  /// The first of `pages` adjacent pages (at least one), or `none` if no run is long enough.
  std::uint32_t allocate(std::uint32_t pages) noexcept;
  /// Whether `allocate` would find a run.
  bool has(std::uint32_t pages) const noexcept { return find(pages) != none; }
  /// Releases the run that begins with page `first`.
  void release(std::uint32_t first) noexcept;

  std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(pages_.size()); }
  std::uint32_t pages_used() const noexcept { return used_; }

private:
  // Valid for the first and the last page of a run; the links only for the first page of a free
  // run.
  struct page {
    std::uint32_t length = 0;
    std::uint32_t previous = none, next = none;
    bool free = false;
  };
  static constexpr std::size_t bins = 124;
  static std::size_t bin_of(std::uint32_t pages) noexcept;

  void mark(std::uint32_t first, std::uint32_t length, bool free) noexcept;
  void link(std::uint32_t first, std::uint32_t length) noexcept;
  void unlink(std::uint32_t first) noexcept;
  std::uint32_t look_in(std::size_t bin, std::uint32_t pages, std::size_t most) const noexcept;
  std::uint32_t find(std::uint32_t pages) const noexcept;

  std::vector<page> pages_;
  std::array<std::uint32_t, bins> heads_;
  std::array<std::uint64_t, 2> filled_{}; // bit set of the bins that have a run
  std::uint32_t used_ = 0;
};

} // namespace asio_rdma::detail
