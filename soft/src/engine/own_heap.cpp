// SPDX-License-Identifier: BSL-1.0
// The device has memory of its own, as an adapter has. Otherwise a program that makes its own
// allocations fail, or counts them, as tests do, would do so with the device's. These operators are
// this library's alone (exports.map); a block is given back to the list of its size, and never to
// the system.
#include "engine/sanitizers.hpp"
#include "engine/spin_mutex.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <sys/mman.h>

namespace soft {
namespace {

void* require(void* p) {
  if (p == nullptr)
    throw std::bad_alloc();
  return p;
}

#if SOFT_ADDRESS_SANITIZER || SOFT_THREAD_SANITIZER

// A sanitizer sees the blocks of malloc only. A test's operators do not concern those either.
void* take_with_size(std::size_t bytes) noexcept {
  return std::aligned_alloc(64, (bytes + 63) & ~std::size_t(63));
}
void give_back_with_size(void* p) noexcept { std::free(p); }

#else

struct block {
  block* next;
};
// Sizes are powers of two from 16 bytes on; a block is aligned to its size, up to a page.
constexpr unsigned smallest = 4, largest = 16, classes = largest - smallest + 1;
constexpr std::size_t chunk = std::size_t(1) << 20;

struct heap {
  spin_mutex mutex;
  block* free[classes] = {};
  std::byte* at = nullptr;
  std::byte* end = nullptr;
};
constinit heap the_heap;

std::byte* map(std::size_t bytes) noexcept {
  void* const m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return m == MAP_FAILED ? nullptr : static_cast<std::byte*>(m);
}

unsigned class_of(std::size_t bytes) noexcept {
  unsigned c = smallest;
  while ((std::size_t(1) << c) < bytes)
    ++c;
  return c;
}

// A large block has a page before it, with its size.
constexpr std::size_t page = 4096;

void* take(std::size_t bytes) noexcept {
  const unsigned c = class_of(bytes);
  if (c > largest) {
    const std::size_t all = (bytes + 2 * page - 1) & ~(page - 1);
    std::byte* const m = map(all);
    if (m == nullptr)
      return nullptr;
    *reinterpret_cast<std::size_t*>(m) = all;
    return m + page;
  }
  heap& h = the_heap;
  const std::lock_guard lock(h.mutex);
  block*& list = h.free[c - smallest];
  if (list == nullptr) {
    const std::size_t size = std::size_t(1) << c;
    auto at = (reinterpret_cast<std::uintptr_t>(h.at) + size - 1) & ~(size - 1);
    if (h.at == nullptr || at + size > reinterpret_cast<std::uintptr_t>(h.end)) {
      h.at = map(chunk);
      if (h.at == nullptr)
        return nullptr;
      h.end = h.at + chunk;
      at = (reinterpret_cast<std::uintptr_t>(h.at) + size - 1) & ~(size - 1);
    }
    h.at = reinterpret_cast<std::byte*>(at + size);
    return reinterpret_cast<void*>(at);
  }
  block* const b = list;
  list = b->next;
  return b;
}

void give_back(void* p, std::size_t bytes) noexcept {
  if (p == nullptr)
    return;
  const unsigned c = class_of(bytes);
  if (c > largest) {
    std::byte* const m = static_cast<std::byte*>(p) - page;
    munmap(m, *reinterpret_cast<std::size_t*>(m));
    return;
  }
  heap& h = the_heap;
  const std::lock_guard lock(h.mutex);
  auto* const b = static_cast<block*>(p);
  b->next = h.free[c - smallest];
  h.free[c - smallest] = b;
}

// Operators without a size need it: it lies before the block, which stays aligned.
constexpr std::size_t head = 64;
void* take_with_size(std::size_t bytes) noexcept {
  auto* const m = static_cast<std::byte*>(take(bytes + head));
  if (m == nullptr)
    return nullptr;
  *reinterpret_cast<std::size_t*>(m) = bytes + head;
  return m + head;
}
void give_back_with_size(void* p) noexcept {
  if (p == nullptr)
    return;
  std::byte* const m = static_cast<std::byte*>(p) - head;
  give_back(m, *reinterpret_cast<std::size_t*>(m));
}

#endif

} // namespace
} // namespace soft

using soft::give_back_with_size;
using soft::take_with_size;

void* operator new(std::size_t n) { return soft::require(take_with_size(n)); }
void* operator new[](std::size_t n) { return soft::require(take_with_size(n)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return take_with_size(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return take_with_size(n); }
void* operator new(std::size_t n, std::align_val_t) { return soft::require(take_with_size(n)); }
void* operator new[](std::size_t n, std::align_val_t) { return soft::require(take_with_size(n)); }
void operator delete(void* p) noexcept { give_back_with_size(p); }
void operator delete[](void* p) noexcept { give_back_with_size(p); }
void operator delete(void* p, std::size_t) noexcept { give_back_with_size(p); }
void operator delete[](void* p, std::size_t) noexcept { give_back_with_size(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back_with_size(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back_with_size(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back_with_size(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give_back_with_size(p); }
