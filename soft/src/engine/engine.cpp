// SPDX-License-Identifier: BSL-1.0
#include "engine/engine.hpp"

#include "engine/of_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <thread>
#include <unistd.h>

namespace soft {
namespace {

constexpr std::uint64_t wake_id = 0, timer_id = 1;
static_assert(timer_id < descriptor_table::first_id);
constexpr unsigned turns_between_looks = 16;
constexpr std::chrono::microseconds near{50}; // the engine spins until a time that is so near
constexpr std::chrono::milliseconds after_precise{1}; // as a wake-up takes longer than an adapter
constexpr std::chrono::microseconds for_a_look{20}; // and looks at its descriptors if there is time
std::atomic<engine*> process_engine{nullptr};
bool is_renewed = false; // in each child

} // namespace

// The engine is never destroyed: its thread may use it until the process ends. A child makes its
// own, with a thread, when it uses the device.
engine& engine::get() {
  if (engine* const e = process_engine.load(std::memory_order_acquire))
    return *e;
  const std::lock_guard lock(forking());
  if (engine* const e = process_engine.load())
    return *e;
  if (!std::exchange(is_renewed, true))
    in_each_child([] { process_engine = nullptr; });
  engine* const made = new engine;
  static_cast<void>(made->start()); // ibv_open_device(3) tries again, and reports the error
  process_engine.store(made, std::memory_order_release);
  return *made;
}

engine::engine()
    // With one processor, a thread that spins keeps away the one that it waits for.
    : spin_(std::thread::hardware_concurrency() > 1 ? std::chrono::microseconds(20)
                                                    : std::chrono::microseconds(0)) {}

// pthread_create(3) returns its error, as std::thread does not: an exception would pass through
// functions of C.
int engine::start() {
  if (has_thread_)
    return 0;
  const auto watch_own = [this](int fd, std::uint64_t id) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id;
    return epoll_ctl(descriptors_.fd(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  const auto begin = [&] {
    if (const int error = descriptors_.open())
      return error;
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0 || !watch_own(wake_, wake_id))
      return errno;
    timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer_ < 0 || !watch_own(timer_, timer_id))
      return errno;
    set_timer(); // of tasks that came before
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread{};
    const int error = pthread_create(
        &thread, nullptr,
        [](void* e) -> void* {
          pthread_setname_np(pthread_self(), "soft0");
          static_cast<engine*>(e)->work();
          return nullptr;
        },
        this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error == 0)
      pthread_detach(thread);
    return error;
  };
  const int error = begin();
  has_thread_ = error == 0;
  if (has_thread_)
    return 0;
  for (int* const fd : {&wake_, &timer_})
    if (*fd >= 0)
      close(std::exchange(*fd, -1));
  descriptors_.close();
  return error;
}

void engine::schedule(task& t) noexcept {
  if (t.scheduled_.exchange(true))
    return;
  task* head = posted_.load(std::memory_order_relaxed);
  do
    t.next_ = head;
  while (!posted_.compare_exchange_weak(head, &t));
  wake();
}

void engine::wake() noexcept {
  if (sleeping_.load() && sleeping_.exchange(false)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_, &one, sizeof(one));
  }
}

// In the order in which they were scheduled.
void engine::collect() {
  const auto first = static_cast<std::ptrdiff_t>(ready_.size());
  for (task* t = posted_.exchange(nullptr); t != nullptr; t = t->next_)
    ready_.push_back(t);
  std::reverse(ready_.begin() + first, ready_.end());
}

void engine::update_near_due() {
  near_due_ = near_.empty() ? never : near_.begin()->first.time_since_epoch().count();
}

void engine::forget_time(task& t) {
  if (t.due_ == clock::time_point::max())
    return;
  timers_.erase({t.due_, &t});
  if (near_.erase({t.due_, &t}) != 0)
    update_near_due();
  t.due_ = clock::time_point::max();
}

void engine::schedule_precisely(task& t, clock::time_point when) {
  if (spin_.count() == 0)
    return schedule_at(t, when);
  const auto now = clock::now();
  precise_until_ = std::max(now, when) + after_precise;
  if (when - now > near) // then the task asks again
    return schedule_at(t, when - near);
  forget_time(t);
  t.due_ = when;
  near_.emplace(when, &t);
  update_near_due();
  wake(); // the caller may be a posting thread
}

// With the engine locked.
void engine::schedule_near() {
  const auto now = clock::now();
  while (!near_.empty() && near_.begin()->first <= now) {
    task& t = *near_.begin()->second;
    near_.erase(near_.begin());
    t.due_ = clock::time_point::max();
    schedule(t);
  }
  update_near_due();
}

void engine::schedule_at(task& t, clock::time_point when) {
  forget_time(t);
  t.due_ = when;
  timers_.emplace(when, &t);
  if (when < timer_set_)
    set_timer();
}

void engine::set_timer() {
  timer_set_ = timers_.empty() ? clock::time_point::max() : timers_.begin()->first;
  itimerspec value{};
  if (!timers_.empty()) {
    const auto ns =
        std::max<std::int64_t>(1, std::chrono::nanoseconds(timer_set_.time_since_epoch()).count());
    value.it_value.tv_sec = ns / 1'000'000'000;
    value.it_value.tv_nsec = ns % 1'000'000'000;
  }
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &value, nullptr);
}

void engine::run_due() {
  const auto now = clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    task& t = *timers_.begin()->second;
    timers_.erase(timers_.begin());
    t.due_ = clock::time_point::max();
    if (t.scheduled_.exchange(true))
      continue;
    ready_.push_back(&t);
    collected_ = true;
  }
  set_timer();
}

void engine::remove(task& t) {
  forget_time(t);
  // Before the tasks leave `posted_`, so that the engine does not sleep meanwhile.
  collected_ = true;
  collect();
  // If it is not there, it was not scheduled, or another thread is in `schedule` and will post it.
  const auto at = std::find(ready_.begin(), ready_.end(), &t);
  if (at == ready_.end())
    return;
  *at = nullptr;
  t.scheduled_ = false;
}

// Descriptors and timers get their turn beside tasks that never end.
void engine::work() {
  for (unsigned turn = 1;; ++turn) {
    const bool posted = run_tasks();
    const bool idle = sleep_is_safe();
    if (idle)
      wait(posted);
    if (turn % turns_between_looks == 0 && (!idle || near_due_.load() != never))
      look(0);
  }
}

bool engine::run_tasks() {
  let_others_pass();
  std::lock_guard lock(mutex_);
  collected_ = false;
  if (is_near_due())
    schedule_near();
  const std::size_t due = ready_.size(); // by their timers, mostly
  collect();
  const bool posted = ready_.size() != due;
  takes_turns_ = true;
  // By index: a task may remove others, which collects what was posted meanwhile.
  for (std::size_t i = 0; i != ready_.size(); ++i) {
    task* const t = std::exchange(ready_[i], nullptr);
    if (t == nullptr)
      continue;
    t->scheduled_ = false;
    t->run();
  }
  ready_.clear();
  takes_turns_ = false;
  return posted;
}

// A program that has posted a request may post the next one soon. Nothing comes from a descriptor
// without a system call, so the engine does not spin after events of descriptors alone.
void engine::wait(bool posted) {
  if (spin_.count() > 0) {
    auto now = clock::now();
    const auto until = std::max(posted ? now + spin_ : now, precise_until_);
    for (unsigned turn = 1; now < until || near_due_.load() != never; now = clock::now(), ++turn) {
      const clock::rep due = near_due_.load(std::memory_order_relaxed);
      if (!sleep_is_safe() || now.time_since_epoch().count() >= due)
        return;
      if (turn % turns_between_looks == 0 &&
          (due == never || clock::time_point(clock::duration(due)) - now > for_a_look))
        look(0);
    }
  }
  sleeping_ = true;
  if (sleep_is_safe() && near_due_.load() == never)
    look(-1);
  sleeping_ = false;
}

// Waits for descriptors and timers; `timeout` is that of epoll_wait(2).
void engine::look(int timeout) {
  epoll_event events[64];
  const int n = epoll_wait(descriptors_.fd(), events, 64, timeout);
  sleeping_ = false;
  if (n <= 0)
    return;
  let_others_pass();
  std::lock_guard lock(mutex_);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t id = events[i].data.u64; // the structure is packed
    std::uint64_t count = 0;
    if (id == wake_id) {
      [[maybe_unused]] const auto taken = read(wake_, &count, sizeof(count));
    } else if (id == timer_id) {
      [[maybe_unused]] const auto taken = read(timer_, &count, sizeof(count));
      run_due();
    } else {
      descriptors_.report(events[i]);
    }
  }
}

} // namespace soft
