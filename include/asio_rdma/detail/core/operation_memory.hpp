// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <memory>

namespace asio_rdma::detail {

/// Memory for operations. The thread that deallocates it caches it for its next operations.
void* allocate_operation(std::size_t bytes);
void deallocate_operation(void* memory, std::size_t bytes) noexcept;

/// The allocator of handlers without an associated allocator. Asio's own
/// (`asio::recycling_allocator`) caches two blocks for each thread, which only serves an operation
/// that follows another. This one also serves operations that start in groups or differ in size.
template <class T>
class operation_allocator {
public:
  using value_type = T;

  operation_allocator() noexcept = default;
  template <class U>
  operation_allocator(const operation_allocator<U>&) noexcept {}

  T* allocate(std::size_t n) {
    if constexpr (alignof(T) > __STDCPP_DEFAULT_NEW_ALIGNMENT__)
      return std::allocator<T>().allocate(n);
    else
      return static_cast<T*>(allocate_operation(n * sizeof(T)));
  }
  void deallocate(T* p, std::size_t n) noexcept {
    if constexpr (alignof(T) > __STDCPP_DEFAULT_NEW_ALIGNMENT__)
      std::allocator<T>().deallocate(p, n);
    else
      deallocate_operation(p, n * sizeof(T));
  }

  friend bool operator==(const operation_allocator&, const operation_allocator&) = default;
};

} // namespace asio_rdma::detail
