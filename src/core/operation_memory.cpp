// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/core/operation_memory.hpp>

#include "core/poison.hpp"

#include <array>
#include <cassert>
#include <cstdint>
#include <new>

namespace asio_rdma::detail {
namespace {

constexpr std::size_t step = 64;
constexpr std::size_t size_classes = 16; // larger blocks are allocated from the heap
// If operations start on one thread and complete on another, the other thread would keep all
// blocks.
constexpr std::uint32_t most_kept = 1024;

struct block {
  block* next;
};

struct size_class {
  block* first = nullptr;
  std::uint32_t kept = 0;
};

enum class stage : std::uint8_t { unused, in_use, ended };

struct thread_blocks {
  std::array<size_class, size_classes> classes;
  stage now = stage::unused;
};

// No destructor: operations may be freed during the destruction of the thread's other objects.
constinit thread_local thread_blocks blocks;

struct cleaner {
  cleaner() noexcept { blocks.now = stage::in_use; }
  cleaner(const cleaner&) = delete;
  ~cleaner() {
    blocks.now = stage::ended;
    for (size_class& c : blocks.classes)
      while (c.first != nullptr) {
        block* const b = c.first;
        unpoison(b, sizeof(block));
        c.first = b->next;
        ::operator delete(b);
      }
  }
};

constexpr std::size_t class_of(std::size_t bytes) noexcept { return (bytes - 1) / step; }
constexpr std::size_t block_bytes(std::size_t n) noexcept { return (n + 1) * step; }

[[gnu::noinline, gnu::cold]] bool may_keep() noexcept {
  if (blocks.now == stage::unused) [[maybe_unused]]
    thread_local const cleaner when_the_thread_ends;
  return blocks.now == stage::in_use;
}

} // namespace

void* allocate_operation(std::size_t bytes) {
  const std::size_t n = class_of(bytes);
  if (n >= size_classes) [[unlikely]]
    return ::operator new(bytes);
  size_class& c = blocks.classes[n];
  block* const b = c.first;
  if (b == nullptr) [[unlikely]]
    return ::operator new(block_bytes(n));
  assert(c.kept != 0);
  unpoison(b, block_bytes(n));
  c.first = b->next;
  --c.kept;
  return b;
}

void deallocate_operation(void* memory, std::size_t bytes) noexcept {
  assert(memory != nullptr);
  const std::size_t n = class_of(bytes);
  if (n < size_classes) [[likely]] {
    size_class& c = blocks.classes[n];
    if (c.kept != most_kept && (blocks.now == stage::in_use || may_keep())) [[likely]] {
      c.first = ::new (memory) block{c.first};
      ++c.kept;
      poison(memory, block_bytes(n));
      return;
    }
  }
  ::operator delete(memory);
}

} // namespace asio_rdma::detail
