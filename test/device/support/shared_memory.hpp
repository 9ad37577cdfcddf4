// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cerrno>
#include <new>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace test {

/// An object in memory of its own, which child processes can map by its descriptor. Its members are
/// atomic.
template <class T>
class shared_memory {
public:
  shared_memory() : descriptor_(::memfd_create("shared", 0)) {
    if (descriptor_ < 0 || ::ftruncate(descriptor_, sizeof(T)) != 0)
      fail("memfd_create");
    object_ = new (map()) T;
  }
  /// Maps the object that a descriptor refers to.
  explicit shared_memory(int descriptor)
      : descriptor_(descriptor), object_(static_cast<T*>(map())) {}
  ~shared_memory() {
    ::munmap(object_, sizeof(T));
    ::close(descriptor_);
  }
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;

  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  int descriptor() const noexcept { return descriptor_; }

private:
  [[noreturn]] static void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  void* map() const {
    void* const p = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (p == MAP_FAILED)
      fail("mmap");
    return p;
  }

  int descriptor_;
  T* object_;
};

} // namespace test
