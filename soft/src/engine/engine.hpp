// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_ENGINE_HPP
#define SOFT_ENGINE_ENGINE_HPP

#include "engine/descriptor_table.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace soft {

using clock = std::chrono::steady_clock;

/// Something that the engine does later on its thread, such as a queue pair with posted requests.
/// Each task has one timer.
class task {
public:
  /// Called on the engine's thread with the engine locked, once or more after each
  /// `engine::schedule`; or on a thread that calls `engine::run_here`.
  virtual void run() = 0;

  task() = default;
  task(const task&) = delete;
  task& operator=(const task&) = delete;

protected:
  ~task() = default;

private:
  friend class engine;
  std::atomic<bool> scheduled_{false};
  task* next_ = nullptr;
  clock::time_point due_ = clock::time_point::max();
};

/// While it exists, pthread_cancel(3) does not end this thread. The engine's work has system calls
/// at which it would.
class without_cancellation {
public:
  without_cancellation() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~without_cancellation() { pthread_setcancelstate(before_, nullptr); }
  without_cancellation(const without_cancellation&) = delete;
  without_cancellation& operator=(const without_cancellation&) = delete;

private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

/// The device's thread and its lock. The lock guards all protocol state: queue pairs beyond their
/// rings, keys, connections. A program's threads take it for control functions only; posting and
/// polling go by rings.
class engine {
public:
  /// The engine of this process. A child after fork(2) has another, without any object. It runs
  /// unless the process lacks descriptors or threads.
  static engine& get();

  /// The lock for control functions. The engine lets a waiting thread pass before its next tasks.
  class lock_guard {
  public:
    explicit lock_guard(engine& e) : engine_(e) {
      engine_.waiting_.fetch_add(1);
      engine_.mutex_.lock();
      engine_.waiting_.fetch_sub(1);
    }
    ~lock_guard() { engine_.mutex_.unlock(); }
    lock_guard(const lock_guard&) = delete;
    lock_guard& operator=(const lock_guard&) = delete;

  private:
    engine& engine_;
  };

  /// Runs `t` soon. From any thread, with or without the lock.
  void schedule(task& t) noexcept;
  /// Whether tasks are run by turns, on the engine's thread. With the lock.
  bool takes_turns() const noexcept { return takes_turns_; }
  /// Runs `t` behind the tasks that are ready; or at once, if no tasks are run by turns. With the
  /// lock.
  void run_behind(task& t) noexcept { takes_turns_ ? schedule(t) : t.run(); }
  /// Runs `t` in this thread if the engine is idle, else soon. From any thread, without the
  /// lock.
  void run_here(task& t) noexcept {
    const without_cancellation here;
    if (!try_to_run([&t] { t.run(); }))
      schedule(t);
  }
  /// Calls `f` with the engine locked, in this thread. False: the engine, or another thread, is at
  /// work.
  template <class Function>
  bool try_to_run(Function f) noexcept {
    if (waiting_.load() != 0 || !mutex_.try_lock())
      return false;
    const std::lock_guard lock(mutex_, std::adopt_lock);
    f();
    return true;
  }
  /// The same, once the engine has let this thread pass.
  template <class Function>
  void wait_and_run(Function f) noexcept {
    const lock_guard lock(*this);
    f();
  }
  // The following need the lock.
  /// Makes the thread and its descriptors, unless they are there. An error number: there is nothing
  /// of them, and a later call may find more.
  int start();
  /// Runs `t` at `when`, in place of an earlier time.
  void schedule_at(task& t, clock::time_point when);
  /// The same, to the microsecond if the machine has more than one processor: near its time the
  /// engine spins.
  void schedule_precisely(task& t, clock::time_point when);
  /// The task is not run again; its owner may destroy it.
  void remove(task& t);
  /// Waits for a descriptor. Errors: of epoll_ctl(2), as errno.
  int watch(int fd, std::uint32_t events, descriptor& d) {
    return descriptors_.watch(fd, events, d);
  }
  int change(int fd, std::uint32_t events) { return descriptors_.change(fd, events); }
  void forget(int fd) { descriptors_.forget(fd); }
  /// The table of these descriptors.
  descriptor_table& descriptors() noexcept { return descriptors_; }

private:
  engine();
  void work();
  bool run_tasks();
  void wait(bool posted);
  void wake() noexcept;
  void look(int timeout);
  void let_others_pass() const noexcept {
    while (waiting_.load() != 0)
      std::this_thread::yield();
  }
  bool sleep_is_safe() const noexcept { return posted_.load() == nullptr && !collected_.load(); }
  void collect();
  void set_timer();
  void run_due();
  bool is_near_due() const noexcept {
    const clock::rep due = near_due_.load(std::memory_order_relaxed);
    return due != never && clock::now().time_since_epoch().count() >= due;
  }
  void schedule_near();
  void forget_time(task& t);
  void update_near_due();

  std::mutex mutex_;
  bool takes_turns_ = false;
  std::atomic<unsigned> waiting_{0};
  std::atomic<task*> posted_{nullptr};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> collected_{false}; // in `remove` or `run_due`: `ready_` is to be run
  // Collected from `posted_`, or due, to be run; nullptr where a task was removed.
  std::vector<task*> ready_;
  std::set<std::pair<clock::time_point, task*>> timers_;
  clock::time_point timer_set_ = clock::time_point::max();
  static constexpr clock::rep never = clock::duration::max().count();
  std::set<std::pair<clock::time_point, task*>> near_; // the engine spins until they are due
  std::atomic<clock::rep> near_due_{never};            // the first of them
  clock::time_point precise_until_{};                  // and so long for what comes next
  descriptor_table descriptors_;
  bool has_thread_ = false;
  int wake_ = -1, timer_ = -1;
  clock::duration spin_;
};

} // namespace soft

#endif
