// SPDX-License-Identifier: BSL-1.0
#include <faults/watched_locks.hpp>

#include <pthread.h>
#include <utility>

namespace {

thread_local std::function<void()>* watching = nullptr;

} // namespace

namespace test {

watched_locks::watched_locks(std::function<void()> before) noexcept : before_(std::move(before)) {
  watching = &before_;
}

watched_locks::~watched_locks() { watching = nullptr; }

} // namespace test

// The linker replaces pthread_mutex_lock by this function in all objects of the program (--wrap).
extern "C" int __real_pthread_mutex_lock(pthread_mutex_t*);
extern "C" int __wrap_pthread_mutex_lock(pthread_mutex_t*);
int __wrap_pthread_mutex_lock(pthread_mutex_t* m) {
  if (auto* const before = std::exchange(watching, nullptr)) {
    (*before)();
    watching = before;
  }
  return __real_pthread_mutex_lock(m);
}
