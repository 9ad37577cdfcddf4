// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_ENGINE_HPP
#define SOFT_ENGINE_ENGINE_HPP

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
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

/// Waits for a file descriptor.
class descriptor {
public:
  /// Called on the engine's thread with the engine locked; `events` as of epoll_wait(2).
  virtual void ready(std::uint32_t events) = 0;

protected:
  ~descriptor() = default;
};

/// The device's thread and its lock. The lock guards all protocol state: queue pairs beyond their
/// rings, keys, connections. A program's threads take it for control functions only; posting and
/// polling go by rings.
class engine {
public:
  /// The engine of this process. A child after fork(2) has another, without any object.
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
  /// Runs `t` in this thread if the engine is idle, else soon. From any thread, without the
  /// lock.
  void run_here(task& t) noexcept;
  // The following need the lock.
  /// Runs `t` at `when`, in place of an earlier time.
  void schedule_at(task& t, clock::time_point when);
  /// The same, to the microsecond if the machine has more than one processor: near its time the
  /// engine spins.
  void schedule_precisely(task& t, clock::time_point when);
  /// The task is not run again; its owner may destroy it.
  void remove(task& t);
  /// Waits for a descriptor. Errors: of epoll_ctl(2), as errno.
  int watch(int fd, std::uint32_t events, descriptor& d);
  int change(int fd, std::uint32_t events);
  void forget(int fd);

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
  std::atomic<unsigned> waiting_{0};
  std::atomic<task*> posted_{nullptr};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> collected_{false}; // by another thread, in `remove`: `ready_` is to be run
  std::vector<task*>
      ready_; // collected from `posted_`, to be run; nullptr where a task was removed
  std::set<std::pair<clock::time_point, task*>> timers_;
  clock::time_point timer_set_ = clock::time_point::max();
  static constexpr clock::rep never = clock::duration::max().count();
  std::set<std::pair<clock::time_point, task*>> near_; // the engine spins until they are due
  std::atomic<clock::rep> near_due_{never};            // the first of them
  clock::time_point precise_until_{};                  // and so long for what comes next
  std::unordered_map<int, std::uint64_t> descriptors_; // the id of each in `handlers_`
  std::unordered_map<std::uint64_t, descriptor*> handlers_;
  std::uint64_t next_id_ = 2;
  int epoll_ = -1, wake_ = -1, timer_ = -1;
  clock::duration spin_;
};

} // namespace soft

#endif
