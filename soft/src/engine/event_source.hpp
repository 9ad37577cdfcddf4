// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_EVENT_SOURCE_HPP
#define SOFT_ENGINE_EVENT_SOURCE_HPP

#include <cerrno>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace soft {

/// Events behind a file descriptor that polls like the kernel's: readable while there is an event,
/// with an edge for each one, and `O_NONBLOCK` of the descriptor decides whether `pop` waits. Any
/// thread may use it.
template <class Event>
class event_source {
public:
  event_source() : fd_(eventfd(0, EFD_CLOEXEC)) {}
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
    signal();
  }

  /// No event comes any more, and the descriptor polls as hung up. No eventfd shows that, so a
  /// socket takes its number.
  void end() {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true))
      return;
    signal(); // wakes those that wait for the eventfd
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
      return; // the process has no descriptor left
    dup3(pair[0], fd_, O_CLOEXEC);
    ::close(pair[0]);
    ::close(pair[1]);
  }

  /// Closes the descriptor. No event comes any more.
  void close() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (fd_ >= 0 && !std::exchange(closed_, true))
      ::close(fd_);
  }

  /// Returns 0, or an error number: EAGAIN, EINTR, EIO after `end`. `taken(e)` is called before
  /// another thread can find that the event is gone.
  template <class Taken>
  int pop(Event& e, Taken taken) {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (!events_.empty()) {
          e = std::move(events_.front());
          events_.pop_front();
          drain();
          taken(e);
          return 0;
        }
        if (ended_)
          return EIO;
      }
      const int flags = fcntl(fd_, F_GETFL);
      if (flags < 0)
        return errno; // EBADF: the program has closed it
      if ((flags & O_NONBLOCK) != 0)
        return EAGAIN;
      pollfd p{fd_, POLLIN, 0};
      if (poll(&p, 1, -1) < 0)
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
  void signal() {
    signaled_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(fd_, &one, sizeof(one));
  }

  // The counter is above 0, so that read(2) does not wait.
  void drain() {
    if (!events_.empty() || ended_ || !std::exchange(signaled_, false))
      return;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto taken = read(fd_, &count, sizeof(count));
  }

  std::mutex mutex_;
  std::deque<Event> events_;
  bool ended_ = false, closed_ = false;
  bool signaled_ = false; // the counter is above 0
  const int fd_;
};

} // namespace soft

#endif
