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
      // Readable for ever after `end`.
      pollfd p[] = {{counter_, POLLIN, 0}, {from_ != nullptr ? from_->fd() : -1, POLLIN, 0}};
      if (poll(p, from_ != nullptr ? 2 : 1, -1) < 0)
        return errno;
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
  int counter_; // an eventfd(2)
  const int fd_;
};

} // namespace soft

#endif
