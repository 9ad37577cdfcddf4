// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_EVENT_SOURCE_HPP
#define SOFT_ENGINE_EVENT_SOURCE_HPP

#include "engine/visited_descriptors.hpp"

#include <cerrno>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace soft {

/// Events behind a file descriptor that polls like the kernel's: readable while there is an event,
/// with an edge for each one, and `O_NONBLOCK` of the descriptor decides whether `pop` waits. Any
/// thread may use it.
template <class Event>
class event_source {
public:
  event_source() : counter_(eventfd(0, EFD_CLOEXEC)), fd_(counter_) {}
  /// `pop` visits these descriptors, because events may come from them. A thread that waits in
  /// `pop` is woken by them. So is one that waits for the event source's descriptor by poll(2), if
  /// that descriptor is O_NONBLOCK: the descriptor may poll as readable although there is no event.
  explicit event_source(visited_descriptors& from)
      : from_(&from), counter_(eventfd(0, EFD_CLOEXEC)), fd_(make_epoll(counter_)) {}
  ~event_source() { close(); }
  event_source(const event_source&) = delete;
  event_source& operator=(const event_source&) = delete;

  /// -1: the process has no descriptor left.
  int fd() const noexcept { return fd_; }

  void push(Event e) {
    std::lock_guard lock(mutex_);
    if (ended_)
      return;
    events_.push_back(std::move(e));
    if (visits_ == 0)
      signal();
  }

  /// To be called before a thread waits for the descriptor: looks whether that is O_NONBLOCK.
  void prepare_wait() noexcept {
    if (from_ == nullptr || from_->is_empty())
      return;
    const int flags = fcntl(fd_, F_GETFL);
    const bool wanted = flags >= 0 && (flags & O_NONBLOCK) != 0;
    if (wanted == wakes_early_.load(std::memory_order_relaxed))
      return;
    std::lock_guard lock(mutex_);
    epoll_event e{};
    e.events = EPOLLIN;
    if (!ended_ && epoll_ctl(fd_, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, from_->fd(), &e) == 0)
      wakes_early_ = wanted;
  }

  /// No event comes any more, and the descriptor polls as readable until `leave_descriptor`. The
  /// kernel's polls with POLLERR then, which no descriptor of epoll can show. The descriptor must
  /// stay the same: if another one took its number, an epoll set of the program would lose it.
  void end() {
    std::lock_guard lock(mutex_);
    if (!std::exchange(ended_, true))
      signal();
  }

  /// After `end`, when no thread waits any more: closes what an adapter does not have besides the
  /// descriptor. The program may close that itself, if it cannot destroy the object. The engine
  /// must be locked.
  void leave_descriptor() {
    std::lock_guard lock(mutex_);
    if (ended_ && from_ != nullptr)
      from_->leave();
    if (ended_ && counter_ >= 0 && counter_ != fd_)
      ::close(std::exchange(counter_, -1));
    if (ended_ && bell_ >= 0)
      ::close(std::exchange(bell_, -1));
  }

  /// Closes the descriptor. No event comes any more.
  void close() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (std::exchange(closed_, true))
      return;
    if (fd_ >= 0)
      ::close(fd_);
    if (counter_ >= 0 && counter_ != fd_)
      ::close(counter_);
    if (bell_ >= 0)
      ::close(std::exchange(bell_, -1));
  }

  /// Returns 0, or an error number: EAGAIN, EINTR, EIO after `end`. `taken(e)` is called before
  /// another thread can find that the event is gone.
  template <class Taken>
  int pop(Event& e, Taken taken) {
    for (bool waited = false;; waited = true) {
      bool visits = false;
      {
        std::lock_guard lock(mutex_);
        if (take(e, taken))
          return 0;
        if (ended_)
          return EIO;
        // Else this thread waits for them first.
        visits = (waited || wakes_early_) && from_ != nullptr && !from_->is_empty();
        visits_ += visits ? 1 : 0;
      }
      if (visits && visit(e, taken, waited))
        return 0;
      const int flags = fcntl(fd_, F_GETFL);
      if (flags < 0)
        return errno; // EBADF: the program has closed it
      if ((flags & O_NONBLOCK) != 0)
        return EAGAIN;
      if (const int error = has_visits() ? poll_both() : sleep())
        return error;
    }
  }

  /// Drops the events of which `matches` is true, and calls `dropped` with each.
  template <class Matches, class Dropped>
  void remove_if(Matches matches, Dropped dropped) {
    std::lock_guard lock(mutex_);
    for (auto i = events_.begin(); i != events_.end();) {
      if (!matches(*i)) {
        ++i;
        continue;
      }
      dropped(*i);
      i = events_.erase(i);
    }
    drain();
  }

private:
  template <class Taken>
  bool take(Event& e, Taken& taken) {
    if (events_.empty())
      return false;
    e = std::move(events_.front());
    events_.pop_front();
    drain();
    taken(e);
    return true;
  }

  // The event that the visit brings wakes no thread, as this one takes it.
  template <class Taken>
  bool visit(Event& e, Taken& taken, bool may_wait) {
    from_->visit(may_wait ? visited_descriptors::if_busy::wait
                          : visited_descriptors::if_busy::schedule);
    std::lock_guard lock(mutex_);
    --visits_;
    const bool found = take(e, taken);
    if (!events_.empty() && !signaled_ && !ended_)
      signal();
    return found;
  }

  void signal() {
    signaled_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(counter_, &one, sizeof(one));
    if (const std::uint64_t threads = std::exchange(sleepers_, 0); threads != 0) {
      [[maybe_unused]] const auto rung = write(bell_, &threads, sizeof(threads));
    }
  }

  // Waits as the kernel's read(2) does: after a signal handler with SA_RESTART the wait goes on,
  // and after another one it ends with EINTR. poll(2) would always end. The program polls the other
  // counter, which a waiting read(2) would change. The bell may ring although there is no event.
  // Source: ib_uverbs_event_read in drivers/infiniband/core/uverbs_main.c
  int sleep() {
    int bell = -1;
    {
      std::lock_guard lock(mutex_);
      if (!events_.empty() || ended_)
        return 0;
      if (bell_ < 0)
        bell_ = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
      bell = bell_;
      sleepers_ += bell >= 0 ? 1 : 0;
    }
    if (bell < 0) // no descriptor is left
      return poll_counter();
    std::uint64_t one = 0;
    if (read(bell, &one, sizeof(one)) >= 0)
      return 0;
    const int error = errno;
    std::lock_guard lock(mutex_);
    sleepers_ -= sleepers_ != 0 ? 1 : 0;
    return error;
  }

  bool has_visits() const noexcept { return from_ != nullptr && from_->fd() >= 0; }

  // The counter stays readable after `end`.
  int poll_counter() {
    pollfd p{counter_, POLLIN, 0};
    return poll(&p, 1, -1) < 0 ? errno : 0;
  }
  int poll_both() {
    pollfd p[] = {{counter_, POLLIN, 0}, {from_->fd(), POLLIN, 0}};
    return poll(p, 2, -1) < 0 ? errno : 0;
  }

  // -1, with errno: the process has no descriptor left.
  static int make_epoll(int counter) {
    const int made = counter < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
    epoll_event e{};
    e.events = EPOLLIN;
    if (made < 0 || epoll_ctl(made, EPOLL_CTL_ADD, counter, &e) == 0)
      return made;
    const int error = errno;
    ::close(made);
    errno = error;
    return -1;
  }

  // The counter is above 0, so that read(2) does not wait.
  void drain() {
    if (!events_.empty() || ended_ || !std::exchange(signaled_, false))
      return;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto taken = read(counter_, &count, sizeof(count));
  }

  std::mutex mutex_;
  std::deque<Event> events_;
  bool ended_ = false, closed_ = false;
  bool signaled_ = false; // the counter is above 0
  unsigned visits_ = 0;   // of threads that take the event themselves
  std::atomic<bool> wakes_early_{false};
  visited_descriptors* const from_ = nullptr;
  int counter_;                // an eventfd(2)
  int bell_ = -1;              // another one, for threads in `sleep`
  std::uint64_t sleepers_ = 0; // threads in `sleep` that the bell has not rung for
  const int fd_;
};

} // namespace soft

#endif
