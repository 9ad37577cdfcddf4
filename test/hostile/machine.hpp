// SPDX-License-Identifier: BSL-1.0
// The time in which the machine does not run a process, or a thread of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

namespace test {

/// The time that a thread has waited for a processor, if the kernel tells (proc(5), schedstat).
class processor_wait {
public:
  /// Of the calling thread.
  processor_wait() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~processor_wait() {
    if (file_ >= 0)
      ::close(file_);
  }
  processor_wait(const processor_wait&) = delete;
  /// Thread-safe.
  std::uint64_t total_ns() const {
    char text[100]{};
    unsigned long long ran = 0, waited = 0;
    if (file_ >= 0 && ::pread(file_, text, sizeof text - 1, 0) > 0)
      std::sscanf(text, "%llu %llu", &ran, &waited);
    return waited;
  }

private:
  int file_;
};

/// A thread that only sleeps. The time by which it wakes late is time in which the machine does
/// not run this process: it is added to `late`. `waited` is set to the total of another thread.
class machine_watch {
public:
  machine_watch(const processor_wait& other, std::atomic<std::uint64_t>& late,
                std::atomic<std::uint64_t>& waited)
      : other_(other), late_(late), waited_(waited), thread_([this] { run(); }) {}
  ~machine_watch() {
    over_ = true;
    thread_.join();
  }

private:
  void run() {
    constexpr std::chrono::milliseconds pause(5);
    while (!over_) {
      const auto before = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(pause);
      const std::chrono::nanoseconds late = std::chrono::steady_clock::now() - before - pause;
      late_ += static_cast<std::uint64_t>(late.count());
      waited_ = other_.total_ns();
    }
  }
  const processor_wait& other_;
  std::atomic<std::uint64_t>&late_, &waited_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

} // namespace test
