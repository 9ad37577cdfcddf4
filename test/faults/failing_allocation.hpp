// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

namespace test {

/// Makes one allocation of the process fail while it exists.
///
/// Counts the calls of `operator new` and of `aligned_alloc` (which Boost.Asio uses) by all threads
/// from the construction on, and lets the n-th one throw `std::bad_alloc` (return null, for
/// `aligned_alloc` and the `nothrow` forms). Only one such object may exist at a time. Assertions
/// of the test framework allocate as well, so there are none while it exists.
class failing_allocation {
public:
  /// @param nth  the allocation that fails: 1 is the next one; 0 fails none, and counts.
  explicit failing_allocation(std::size_t nth) noexcept;
  failing_allocation(const failing_allocation&) = delete;
  failing_allocation& operator=(const failing_allocation&) = delete;
  ~failing_allocation();

  /// Whether the n-th allocation has been asked for, and refused.
  [[nodiscard]] bool failed() const noexcept;
  /// The number of allocations since the construction.
  [[nodiscard]] std::size_t count() const noexcept;
};

} // namespace test
