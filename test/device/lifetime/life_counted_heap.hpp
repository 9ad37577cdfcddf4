// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstddef>

namespace test {

/// The number of heap allocations. A program that links this has malloc and its kind replaced.
/// Replacing operator new is not enough, as Asio takes recycled memory from std::aligned_alloc.
extern std::atomic<std::size_t> allocations;

} // namespace test
