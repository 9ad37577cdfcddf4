// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define ASIO_RDMA_POISON
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASIO_RDMA_POISON
#endif
#endif
#ifdef ASIO_RDMA_POISON
#include <sanitizer/asan_interface.h>
#endif

// Tells AddressSanitizer which bytes of a pool are not in use.

namespace asio_rdma::detail {

inline void poison([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef ASIO_RDMA_POISON
  __asan_poison_memory_region(data, bytes);
#endif
}

inline void unpoison([[maybe_unused]] const void* data,
                     [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef ASIO_RDMA_POISON
  __asan_unpoison_memory_region(data, bytes);
#endif
}

} // namespace asio_rdma::detail
