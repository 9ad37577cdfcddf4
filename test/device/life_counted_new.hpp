// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstddef>

namespace test {

/// How often operator new has been called. A program with this replaces it, so it has its own file:
/// inlined into callers, compilers take malloc and free for a mismatch.
extern std::atomic<std::size_t> allocations;

} // namespace test
