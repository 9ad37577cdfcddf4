// SPDX-License-Identifier: BSL-1.0
// A histogram of durations in bounded memory.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace perf {

/// Counts of durations in nanoseconds. Each power of two is divided into 64 counters, so a
/// percentile is within 1/64 of the truth; the least and the greatest duration are exact. Durations
/// of 2^42 ns (73 minutes) and more share the last counter. Its memory, 19 KiB, never grows.
class histogram {
public:
  void add(std::uint64_t nanoseconds) noexcept {
    ++counts_[index_of(nanoseconds)];
    ++count_;
    sum_ += nanoseconds;
    least_ = nanoseconds < least_ ? nanoseconds : least_;
    most_ = nanoseconds > most_ ? nanoseconds : most_;
  }
  void clear() noexcept { *this = {}; }

  std::uint64_t count() const noexcept { return count_; }
  /// All 0 if nothing was added.
  std::uint64_t least() const noexcept { return count_ == 0 ? 0 : least_; }
  std::uint64_t most() const noexcept { return most_; }
  double mean() const noexcept { return count_ == 0 ? 0 : double(sum_) / double(count_); }
  /// The duration that the given share of all durations (above 0, up to 1) does not exceed: the
  /// middle of its counter, within the least and the greatest duration.
  std::uint64_t quantile(double share) const noexcept;

private:
  static constexpr unsigned bits = 6, powers = 42;
  static constexpr std::size_t counters = (powers - bits + 1) << bits;

  // Below 64 each duration has a counter. Above, the counter is given by the highest bit of the
  // duration and the six bits behind.
  static std::size_t index_of(std::uint64_t value) noexcept {
    const unsigned width = unsigned(std::bit_width(value));
    if (width > powers)
      return counters - 1;
    if (width <= bits)
      return std::size_t(value);
    const unsigned shift = width - bits - 1;
    return (std::size_t(shift) << bits) + std::size_t(value >> shift);
  }
  static std::uint64_t middle_of(std::size_t index) noexcept;

  std::array<std::uint64_t, counters> counts_{};
  std::uint64_t count_ = 0, sum_ = 0, most_ = 0;
  std::uint64_t least_ = ~std::uint64_t(0);
};

} // namespace perf
