// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstddef>

namespace test {

/// How often memory was taken from the heap. A program with this has malloc and its kind replaced:
/// operator new is not all, as Asio's recycled memory comes from std::aligned_alloc.
extern std::atomic<std::size_t> allocations;

} // namespace test
