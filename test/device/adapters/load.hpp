// SPDX-License-Identifier: BSL-1.0
// Coroutines that repeat an operation until it fails.
#pragma once

#include "device/support/pair.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace test {

/// Operations of one test, started again and again on any thread, and the error that ended each.
class load {
public:
  struct end {
    const char* name;
    error_code ec;
  };

  /// Awaits `step()` until it throws a `system_error`. The context throws any other exception.
  template <class ExecutorOrContext, class Step>
  void start(ExecutorOrContext&& ex, const char* name, Step step) {
    ++running_;
    asio::co_spawn(ex, repeat(name, std::move(step)), [](const std::exception_ptr& e) {
      if (e)
        std::rethrow_exception(e);
    });
  }
  int running() const noexcept { return running_; }
  /// The operations that have succeeded.
  std::uint64_t steps() const noexcept { return steps_; }
  std::vector<end> ends() const {
    const std::lock_guard lock(mutex_);
    return ends_;
  }

private:
  template <class Step>
  asio::awaitable<void> repeat(const char* name, Step step) {
    error_code ec;
    try {
      for (;;) {
        co_await step();
        ++steps_;
      }
    } catch (const system_error& e) {
      ec = e.code();
    }
    {
      const std::lock_guard lock(mutex_);
      ends_.push_back({name, ec});
    }
    --running_;
  }

  mutable std::mutex mutex_;
  std::vector<end> ends_;
  std::atomic<int> running_{0};
  std::atomic<std::uint64_t> steps_{0};
};

} // namespace test
