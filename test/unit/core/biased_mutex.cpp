// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include "core/biased_mutex.hpp"

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

using asio_rdma::detail::biased_mutex;

namespace {

void lock_once_as_owner(biased_mutex& m) {
  m.lock_as_owner();
  m.unlock();
}

} // namespace

TEST_CASE("a thread that locks the mutex of another waits until the owner has unlocked it") {
  biased_mutex m;
  lock_once_as_owner(m);
  m.lock();
  CHECK(m.is_locked());
  std::atomic<bool> comes{false}, is_in{false};
  std::thread other([&] {
    comes = true;
    const std::lock_guard lock(m);
    is_in = true;
  });
  while (!comes)
    std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
    if (is_in)
      break;
  }
  CHECK_FALSE(is_in);
  m.unlock();
  other.join();
  CHECK(is_in);
  CHECK_FALSE(m.is_locked());
}

TEST_CASE("the owner that has lost its mutex waits for the other thread") {
  biased_mutex m;
  lock_once_as_owner(m);
  std::atomic<bool> is_in{false}, may_leave{false}, has_left{false};
  std::thread other([&] {
    m.lock();
    is_in = true;
    while (!may_leave)
      std::this_thread::yield();
    has_left = true;
    m.unlock();
  });
  while (!is_in)
    std::this_thread::yield();
  CHECK(m.is_locked());
  may_leave = true;
  m.lock();
  CHECK(has_left);
  m.unlock();
  m.lock_as_owner(); // it has no owner any more
  CHECK(m.is_locked());
  m.unlock();
  CHECK_FALSE(m.is_locked());
  other.join();
}

TEST_CASE("a mutex whose owner has ended can be locked by another thread") {
  biased_mutex m;
  std::thread([&] { lock_once_as_owner(m); }).join();
  m.lock_as_owner();
  CHECK(m.is_locked());
  m.unlock();
  CHECK_FALSE(m.is_locked());
}

TEST_CASE("no two threads are inside at a time while the owner loses its mutex") {
  constexpr int mutexes = 500, times = 100;
  struct guarded {
    biased_mutex mutex;
    int value = 0;
    std::atomic<int> of_owner{0};
    std::atomic<bool> other_is_done{false};

    void increment() {
      const int before = value;
      std::atomic_signal_fence(std::memory_order_seq_cst); // reads and writes are two steps
      value = before + 1;
    }
  };
  std::deque<guarded> all(mutexes);
  std::thread other([&] {
    int n = 0;
    for (guarded& g : all) {
      while (g.of_owner <= n % 20) // at another moment of the owner each time
        continue;
      ++n;
      for (int i = 0; i < times; ++i) {
        const std::lock_guard lock(g.mutex);
        g.increment();
      }
      g.other_is_done = true;
    }
  });
  int wrong = 0;
  for (guarded& g : all) {
    while (!g.other_is_done) {
      g.mutex.lock_as_owner();
      g.increment();
      g.mutex.unlock();
      g.of_owner.store(g.of_owner.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    const std::lock_guard lock(g.mutex);
    wrong += g.value == g.of_owner + times ? 0 : 1;
  }
  other.join();
  CHECK(wrong == 0);
}
