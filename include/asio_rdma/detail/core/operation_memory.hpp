// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/poison.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// Blocks of memory that a thread keeps for its next operations, by size.
struct operation_blocks {
  struct block {
    block* next;
  };
  struct size_class {
    block* first = nullptr;
    std::uint32_t room = 0; ///< The number of further blocks that may be kept.
  };

  static constexpr std::size_t step = 64;
  static constexpr std::size_t class_of(std::size_t bytes) noexcept { return (bytes - 1) / step; }
  static constexpr std::size_t block_bytes(std::size_t n) noexcept { return (n + 1) * step; }

  static constexpr std::size_t size_classes = 16; // larger blocks are allocated from the heap
  std::array<size_class, size_classes> classes;
};

/// Those of the calling thread.
extern constinit thread_local operation_blocks thread_operation_blocks;

void* allocate_operation_slowly(std::size_t bytes);
void deallocate_operation_slowly(void* memory, std::size_t bytes) noexcept;

/// Memory for operations. The thread that deallocates it keeps it for its next operations.
[[gnu::always_inline]] inline void* allocate_operation(std::size_t bytes) {
  using blocks = operation_blocks;
  if (const std::size_t n = blocks::class_of(bytes); n < blocks::size_classes) [[likely]] {
    blocks::size_class& c = thread_operation_blocks.classes[n];
    if (blocks::block* const b = c.first) [[likely]] {
      unpoison(b, blocks::block_bytes(n));
      c.first = b->next;
      ++c.room;
      return b;
    }
  }
  return allocate_operation_slowly(bytes);
}

[[gnu::always_inline]] inline void deallocate_operation(void* memory, std::size_t bytes) noexcept {
  using blocks = operation_blocks;
  if (const std::size_t n = blocks::class_of(bytes); n < blocks::size_classes) [[likely]] {
    blocks::size_class& c = thread_operation_blocks.classes[n];
    if (c.room != 0) [[likely]] {
      c.first = ::new (memory) blocks::block{c.first};
      --c.room;
      poison(memory, blocks::block_bytes(n));
      return;
    }
  }
  deallocate_operation_slowly(memory, bytes);
}

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
#pragma GCC visibility pop
