// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <functional>

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

/// Calls a function before each `operator new` of the thread, but not before those of the function
/// itself, while it exists.
class watched_allocations {
public:
  explicit watched_allocations(std::function<void()> before) noexcept;
  watched_allocations(const watched_allocations&) = delete;
  watched_allocations& operator=(const watched_allocations&) = delete;
  ~watched_allocations();

private:
  std::function<void()> before_;
};

} // namespace test
