// SPDX-License-Identifier: BSL-1.0
#include "device/support/sleep_count.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <poll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

std::atomic<int> sleeps{0};

int system_sleep(clockid_t clock, int flags, const timespec* t, timespec* left) {
  ++sleeps;
  return syscall(SYS_clock_nanosleep, clock, flags, t, left) == 0 ? 0 : errno;
}

int system_sleep(const timespec* t, timespec* left) {
  const int e = system_sleep(CLOCK_MONOTONIC, 0, t, left);
  if (e == 0)
    return 0;
  errno = e;
  return -1;
}

int system_poll(pollfd* descriptors, nfds_t n, const timespec* t, const sigset_t* mask) {
  if (t == nullptr || t->tv_sec != 0 || t->tv_nsec != 0)
    ++sleeps;
  timespec left = t != nullptr ? *t : timespec{}; // the system call changes it
  return static_cast<int>(
      syscall(SYS_ppoll, descriptors, n, t != nullptr ? &left : nullptr, mask, _NSIG / 8));
}

int system_select(int n, fd_set* in, fd_set* out, fd_set* except, const timespec* t,
                  const sigset_t* mask) {
  if (t == nullptr || t->tv_sec != 0 || t->tv_nsec != 0)
    ++sleeps;
  timespec left = t != nullptr ? *t : timespec{};
  const struct {
    const sigset_t* mask;
    std::size_t bytes;
  } signals{mask, _NSIG / 8};
  return static_cast<int>(
      syscall(SYS_pselect6, n, in, out, except, t != nullptr ? &left : nullptr, &signals));
}

} // namespace

int test::count_sleeps() noexcept { return sleeps; }

extern "C" {

unsigned sleep(unsigned seconds) {
  timespec left{static_cast<time_t>(seconds), 0};
  const timespec t = left;
  return system_sleep(&t, &left) == 0 ? 0 : static_cast<unsigned>(left.tv_sec);
}

int usleep(useconds_t us) {
  const timespec t{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000) * 1000};
  return system_sleep(&t, nullptr);
}

int nanosleep(const timespec* t, timespec* left) { return system_sleep(t, left); }

int clock_nanosleep(clockid_t clock, int flags, const timespec* t, timespec* left) {
  return system_sleep(clock, flags, t, left);
}

int poll(pollfd* descriptors, nfds_t n, int ms) {
  const timespec t{ms / 1000, ms % 1000 * 1'000'000L};
  return system_poll(descriptors, n, ms < 0 ? nullptr : &t, nullptr);
}

int ppoll(pollfd* descriptors, nfds_t n, const timespec* t, const sigset_t* mask) {
  return system_poll(descriptors, n, t, mask);
}

int select(int n, fd_set* in, fd_set* out, fd_set* except, timeval* t) {
  if (t == nullptr)
    return system_select(n, in, out, except, nullptr, nullptr);
  const timespec same{t->tv_sec, t->tv_usec * 1000};
  return system_select(n, in, out, except, &same, nullptr);
}

int pselect(int n, fd_set* in, fd_set* out, fd_set* except, const timespec* t,
            const sigset_t* mask) {
  return system_select(n, in, out, except, t, mask);
}
}
