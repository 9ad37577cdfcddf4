// SPDX-License-Identifier: BSL-1.0
// The device has memory of its own, as an adapter has. Otherwise a program that makes its own
// allocations fail, or counts them, as tests do, would do so with the device's. These operators are
// this library's alone (exports.map); a block is given back to the list of its size, and never to
// the system.
#include "engine/own_heap.hpp"

#include "engine/sanitizers.hpp"
#include "engine/spin_mutex.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace soft {
namespace {

void* require(void* p) {
  if (p == nullptr)
    throw std::bad_alloc();
  return p;
}

#if SOFT_ADDRESS_SANITIZER || SOFT_THREAD_SANITIZER

// A sanitizer sees the blocks of malloc only. A test's operators do not concern those either.
template <std::size_t>
void* take_with_size(std::size_t bytes) noexcept {
  return std::aligned_alloc(64, (bytes + 63) & ~std::size_t(63));
}
template <std::size_t>
void give_back_with_size(void* p) noexcept {
  std::free(p);
}

#else

struct block {
  block* next;
};
// Blocks are aligned to 64 bytes. Their sizes are 64 bytes, 128, 192, 256, and from there on four
// to each power of two.
constexpr std::size_t unit = 64, largest = std::size_t(1) << 16;
constexpr std::size_t chunk = std::size_t(1) << 20;

struct size_class {
  unsigned index;
  std::size_t size;
};
constexpr size_class class_of(std::size_t bytes) noexcept {
  const std::size_t units = bytes == 0 ? 0 : (bytes - 1) / unit; // the largest size below
  if (units < 4)
    return {static_cast<unsigned>(units), (units + 1) * unit};
  const unsigned octave = static_cast<unsigned>(std::bit_width(units)) - 3;
  const std::size_t step = units >> octave; // 4 to 7
  return {4 * octave + static_cast<unsigned>(step), ((step + 1) * unit) << octave};
}
static_assert(class_of(64).size == 64 && class_of(257).size == 320 && class_of(1025).size == 1280 &&
              class_of(largest).size == largest);
constexpr unsigned classes = class_of(largest).index + 1;

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

// A large block has a page before it, with its size.
constexpr std::size_t page = 4096;

void* take(std::size_t bytes) noexcept {
  if (bytes > largest) {
    const std::size_t all = (bytes + 2 * page - 1) & ~(page - 1);
    std::byte* const m = map(all);
    if (m == nullptr)
      return nullptr;
    *reinterpret_cast<std::size_t*>(m) = all;
    return m + page;
  }
  const auto [c, size] = class_of(bytes);
  heap& h = the_heap;
  const std::lock_guard lock(h.mutex);
  block*& list = h.free[c];
  if (list == nullptr) {
    if (static_cast<std::size_t>(h.end - h.at) < size) {
      std::byte* const m = map(chunk);
      if (m == nullptr)
        return nullptr;
      h.at = m;
      h.end = m + chunk;
    }
    return std::exchange(h.at, h.at + size);
  }
  block* const b = list;
  list = b->next;
  return b;
}

void give_back(void* p, std::size_t bytes) noexcept {
  if (p == nullptr)
    return;
  if (bytes > largest) {
    std::byte* const m = static_cast<std::byte*>(p) - page;
    munmap(m, *reinterpret_cast<std::size_t*>(m));
    return;
  }
  heap& h = the_heap;
  const std::lock_guard lock(h.mutex);
  auto* const b = static_cast<block*>(p);
  block*& list = h.free[class_of(bytes).index];
  b->next = list;
  list = b;
}

// The size lies before the block, as `delete` needs it. The block stays aligned.
template <std::size_t head>
void* take_with_size(std::size_t bytes) noexcept {
  auto* const m = static_cast<std::byte*>(take(bytes + head));
  if (m == nullptr)
    return nullptr;
  *reinterpret_cast<std::size_t*>(m) = bytes + head;
  return m + head;
}
template <std::size_t head>
void give_back_with_size(void* p) noexcept {
  if (p == nullptr)
    return;
  std::byte* const m = static_cast<std::byte*>(p) - head;
  give_back(m, *reinterpret_cast<std::size_t*>(m));
}

#endif

} // namespace
// Of blocks whose type has a larger alignment than malloc's, and of others.
constexpr std::size_t aligned = 64, usual = 16;

} // namespace soft

#if SOFT_ADDRESS_SANITIZER || SOFT_THREAD_SANITIZER
void soft::lock_heap() noexcept {} // malloc sees to itself
void soft::unlock_heap() noexcept {}
#else
void soft::lock_heap() noexcept { soft::the_heap.mutex.lock(); }
void soft::unlock_heap() noexcept { soft::the_heap.mutex.unlock(); }
#endif

void* operator new(std::size_t n) { return soft::require(soft::take_with_size<soft::usual>(n)); }
void* operator new[](std::size_t n) { return soft::require(soft::take_with_size<soft::usual>(n)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return soft::take_with_size<soft::usual>(n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return soft::take_with_size<soft::usual>(n);
}
void* operator new(std::size_t n, std::align_val_t) {
  return soft::require(soft::take_with_size<soft::aligned>(n));
}
void* operator new[](std::size_t n, std::align_val_t) {
  return soft::require(soft::take_with_size<soft::aligned>(n));
}
void operator delete(void* p) noexcept { soft::give_back_with_size<soft::usual>(p); }
void operator delete[](void* p) noexcept { soft::give_back_with_size<soft::usual>(p); }
void operator delete(void* p, std::size_t) noexcept { soft::give_back_with_size<soft::usual>(p); }
void operator delete[](void* p, std::size_t) noexcept { soft::give_back_with_size<soft::usual>(p); }
void operator delete(void* p, std::align_val_t) noexcept {
  soft::give_back_with_size<soft::aligned>(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  soft::give_back_with_size<soft::aligned>(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  soft::give_back_with_size<soft::aligned>(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  soft::give_back_with_size<soft::aligned>(p);
}
