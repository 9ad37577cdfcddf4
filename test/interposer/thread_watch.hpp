// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <functional>
#include <utility>

namespace test {

/// Calls a function before each event of a kind in the thread that made the object, but not before
/// those of the function itself, while the object exists. The source of the events calls `tell`.
template <class Kind>
class thread_watch {
public:
  explicit thread_watch(std::function<void()> before) noexcept : before_(std::move(before)) {
    watching_ = &before_;
  }
  thread_watch(const thread_watch&) = delete;
  thread_watch& operator=(const thread_watch&) = delete;
  ~thread_watch() { watching_ = nullptr; }

  static void tell() noexcept {
    if (auto* const before = std::exchange(watching_, nullptr)) {
      (*before)();
      watching_ = before;
    }
  }

private:
  inline static thread_local std::function<void()>* watching_ = nullptr;
  std::function<void()> before_;
};

} // namespace test
