// SPDX-License-Identifier: BSL-1.0
#include "engine/of_process.hpp"

#include "engine/own_heap.hpp"

#include <cassert>
#include <cstddef>
#include <iterator>
#include <pthread.h>

namespace soft {
namespace {

constinit std::mutex mutex;
using renewal = void (*)();
constinit renewal renewals[32] = {};
constinit std::size_t count = 0;

} // namespace

std::mutex& forking() noexcept { return mutex; }

// The child has the thread alone that forked. It unlocks what that thread has locked before.
void in_each_child(void (*renew)()) noexcept {
  static const int registered = pthread_atfork(
      [] {
        mutex.lock();
        lock_heap();
      },
      [] {
        unlock_heap();
        mutex.unlock();
      },
      [] {
        unlock_heap();
        for (std::size_t i = 0; i != count; ++i)
          renewals[i]();
        mutex.unlock();
      });
  static_cast<void>(registered);
  assert(count != std::size(renewals));
  renewals[count++] = renew;
}

} // namespace soft
