// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <functional>

namespace test {

/// Calls a function before each lock of a mutex (`std::mutex` or one of Asio's) by the thread, but
/// not before those of the function itself, while it exists.
class watched_locks {
public:
  explicit watched_locks(std::function<void()> before) noexcept;
  watched_locks(const watched_locks&) = delete;
  watched_locks& operator=(const watched_locks&) = delete;
  ~watched_locks();

private:
  std::function<void()> before_;
};

} // namespace test
