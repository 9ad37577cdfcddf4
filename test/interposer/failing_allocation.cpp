// SPDX-License-Identifier: BSL-1.0
#include <interposer/failing_allocation.hpp>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> counted{0};
std::atomic<std::size_t> failing{0};

bool fails() noexcept {
  return counting.load(std::memory_order_relaxed) &&
         counted.fetch_add(1, std::memory_order_relaxed) + 1 ==
             failing.load(std::memory_order_relaxed);
}

void* allocate(std::size_t bytes) noexcept {
  test::watched_allocations::tell();
  return fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  test::watched_allocations::tell();
  void* p = nullptr;
  if (fails() ||
      posix_memalign(&p, static_cast<std::size_t>(alignment), bytes == 0 ? 1 : bytes) != 0) {
    return nullptr;
  }
  return p;
}

template <class... Alignment>
void* allocate_or_throw(std::size_t bytes, Alignment... alignment) {
  void* p = allocate(bytes, alignment...);
  if (p == nullptr) {
    throw std::bad_alloc();
  }
  return p;
}

} // namespace

namespace test {

failing_allocation::failing_allocation(std::size_t nth) noexcept {
  failing = nth;
  counted = 0;
  counting = true;
}

failing_allocation::~failing_allocation() { counting = false; }

bool failing_allocation::failed() const noexcept { return failing != 0 && counted >= failing; }

std::size_t failing_allocation::count() const noexcept { return counted; }

} // namespace test

// The linker replaces aligned_alloc by this function in all objects of the program (--wrap).
extern "C" void* __real_aligned_alloc(std::size_t, std::size_t);
extern "C" void* __wrap_aligned_alloc(std::size_t, std::size_t);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails() ? nullptr : __real_aligned_alloc(alignment, bytes);
}

void* operator new(std::size_t n) { return allocate_or_throw(n); }
void* operator new[](std::size_t n) { return allocate_or_throw(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate_or_throw(n, a); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate_or_throw(n, a); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, a);
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, a);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
