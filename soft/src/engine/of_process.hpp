// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_OF_PROCESS_HPP
#define SOFT_ENGINE_OF_PROCESS_HPP

#include <atomic>
#include <mutex>

namespace soft {

/// Locked while the process forks, and while an object of the process is made.
std::mutex& forking() noexcept;

/// Calls `renew` in each child after fork(2), with `forking` locked. At most 32 functions.
void in_each_child(void (*renew)()) noexcept;

/// The object of this type that the process has. A child after fork(2) has a new one, because a
/// thread of the parent may have been changing the old one. It is never destroyed: the engine may
/// use it until the process ends.
template <class T>
T& of_process() {
  struct holder {
    static void make() { now().store(new T, std::memory_order_release); }
    static std::atomic<T*>& now() {
      static constinit std::atomic<T*> object{nullptr};
      return object;
    }
  };
  if (T* const made = holder::now().load(std::memory_order_acquire))
    return *made;
  const std::lock_guard lock(forking());
  if (holder::now().load() == nullptr) {
    holder::make();
    in_each_child(&holder::make);
  }
  return *holder::now().load();
}

} // namespace soft

#endif
