// SPDX-License-Identifier: BSL-1.0
#pragma once

// Catch2 2 (Debian 12) and 3 (newer systems) have different headers for the same macros.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define ASIO_RDMA_CATCH_VERSION 3
#else
#include <catch2/catch.hpp>
#define ASIO_RDMA_CATCH_VERSION 2
#endif

namespace test {

/// Reports that the device lacks a feature that a test case, or a part of one, needs. Call it
/// before the test case returns: tools/test-summary counts the printed line.
void not_on_this_device(const char* what);

} // namespace test
