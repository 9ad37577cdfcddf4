// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace asio_rdma::detail {

/// A number that is incremented under a lock and may be read by any thread. As fast as a plain
/// integer.
class tally {
public:
  void add(std::uint64_t n = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
  std::atomic<std::uint64_t> value_{0};
};

/// Measured times, counted by powers of two of nanoseconds. Changed under a lock and read by any
/// thread, as a `tally`.
class latency_tally {
public:
  static constexpr std::size_t classes = 40;
  using clock = std::chrono::steady_clock;

  void add(clock::duration time) noexcept {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    const auto n = static_cast<std::uint64_t>(ns < 0 ? 0 : ns);
    last_.store(n, std::memory_order_relaxed);
    sum_.add(n);
    counts_[class_of(n)].add();
  }
  /// Class i has the times below 2^i nanoseconds, and not below 2^(i - 1); the last class has all
  /// others.
  static constexpr std::size_t class_of(std::uint64_t nanoseconds) noexcept {
    std::size_t i = 0;
    while (i + 1 < classes && nanoseconds >> i != 0)
      ++i;
    return i;
  }
  std::uint64_t last() const noexcept { return last_.load(std::memory_order_relaxed); }
  std::uint64_t sum() const noexcept { return sum_.value(); }
  std::uint64_t count(std::size_t i) const noexcept { return counts_[i].value(); }

private:
  std::array<tally, classes> counts_;
  tally sum_;
  std::atomic<std::uint64_t> last_{0};
};

} // namespace asio_rdma::detail
