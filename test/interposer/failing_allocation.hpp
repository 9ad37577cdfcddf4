// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <interposer/thread_watch.hpp>

#include <cstddef>

namespace test {

/// Makes one allocation of the process fail during its lifetime.
///
/// Counts the calls of `operator new` and of `aligned_alloc` (which Boost.Asio uses) by all threads
/// since the construction. The n-th call throws `std::bad_alloc`; `aligned_alloc` and the `nothrow`
/// forms return null. Only one such object may exist at a time. Assertions of the test framework
/// allocate as well, so use none during its lifetime.
class failing_allocation {
public:
  /// @param nth  the allocation that fails: 1 is the next one; 0 only counts.
  explicit failing_allocation(std::size_t nth) noexcept;
  failing_allocation(const failing_allocation&) = delete;
  failing_allocation& operator=(const failing_allocation&) = delete;
  ~failing_allocation();

  /// Whether the n-th allocation was requested, and refused.
  [[nodiscard]] bool failed() const noexcept;
  /// The number of allocations since the construction.
  [[nodiscard]] std::size_t count() const noexcept;
};

/// Calls a function before each `operator new`.
using watched_allocations = thread_watch<struct allocation>;

} // namespace test
