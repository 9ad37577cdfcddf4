// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_SUPPORT_INTERRUPTING_TIMER_HPP
#define SOFT_TEST_DEVICE_SUPPORT_INTERRUPTING_TIMER_HPP

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <sys/time.h>

namespace soft::test {

/// A timer that sends SIGALRM every millisecond. Without SA_RESTART in `flags`, as with libFuzzer's
/// timer, an interrupted system call is not restarted.
class interrupting_timer {
public:
  explicit interrupting_timer(int flags = 0) {
    signals_ = 0;
    struct sigaction handler {};
    handler.sa_handler = [](int) {
      ++signals_;
    };
    handler.sa_flags = flags;
    REQUIRE(sigaction(SIGALRM, &handler, &before_) == 0);
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
