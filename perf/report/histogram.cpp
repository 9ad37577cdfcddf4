// SPDX-License-Identifier: BSL-1.0
#include "histogram.hpp"

#include <algorithm>
#include <cmath>

namespace perf {

std::uint64_t histogram::middle_of(std::size_t index) noexcept {
  if (index < (std::size_t(2) << bits))
    return index;
  const unsigned shift = unsigned(index >> bits) - 1;
  const std::uint64_t first = (std::uint64_t(index) - (std::uint64_t(shift) << bits)) << shift;
  return first + (std::uint64_t(1) << shift) / 2;
}

std::uint64_t histogram::quantile(double share) const noexcept {
  if (count_ == 0)
    return 0;
  const double wanted = std::ceil(share * double(count_) - 1e-9);
  const std::uint64_t rank = std::clamp<std::uint64_t>(std::uint64_t(wanted), 1, count_);
  if (rank == count_) // exact
    return most_;
  std::uint64_t passed = 0;
  for (std::size_t i = 0; i < counters; ++i) {
    passed += counts_[i];
    if (passed >= rank)
      return std::clamp(middle_of(i), least_, most_);
  }
  return most_;
}

} // namespace perf
