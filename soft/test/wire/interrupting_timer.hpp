// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_INTERRUPTING_TIMER_HPP
#define SOFT_TEST_WIRE_INTERRUPTING_TIMER_HPP

#include <atomic>
#include <csignal>
#include <sys/time.h>

namespace soft::test {

/// A timer that sends SIGALRM every millisecond. As with libFuzzer's timer, an interrupted system
/// call is not restarted.
class interrupting_timer {
public:
  interrupting_timer() {
    signals_ = 0;
    struct sigaction handler {};
    handler.sa_handler = [](int) {
      ++signals_;
    };
    sigaction(SIGALRM, &handler, &before_);
    set(1000);
  }
  ~interrupting_timer() {
    set(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  interrupting_timer(const interrupting_timer&) = delete;
  interrupting_timer& operator=(const interrupting_timer&) = delete;

  static int signals() noexcept { return signals_; }

private:
  static void set(int microseconds) {
    const itimerval every{{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  inline static std::atomic<int> signals_{0};
  struct sigaction before_ {};
};

} // namespace soft::test

#endif
