// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_SPIN_MUTEX_HPP
#define SOFT_ENGINE_SPIN_MUTEX_HPP

#include <atomic>
#include <thread>

namespace soft {

/// A mutex for a few instructions: posting a request, or polling a completion queue. It yields
/// while another thread has it.
class spin_mutex {
public:
  void lock() noexcept {
    while (taken_.exchange(true, std::memory_order_acquire))
      std::this_thread::yield();
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

private:
  std::atomic<bool> taken_{false};
};

} // namespace soft

#endif
