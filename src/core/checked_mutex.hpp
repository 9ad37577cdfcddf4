// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <mutex>

#ifndef NDEBUG
#include <atomic>
#include <thread>
#endif

namespace asio_rdma::detail {

/// A `std::mutex` that knows its owner in builds with assertions. For classes of `src/` only: the
/// size depends on NDEBUG, which an application may set differently from the library.
class checked_mutex {
public:
  void lock() {
    mutex_.lock();
    set_owner();
  }
  void unlock() {
    clear_owner();
    mutex_.unlock();
  }

#ifndef NDEBUG
  /// Whether this thread has locked the mutex. For assertions only.
  bool held() const noexcept { return owner_.load() == std::this_thread::get_id(); }

private:
  void set_owner() noexcept { owner_.store(std::this_thread::get_id()); }
  void clear_owner() noexcept { owner_.store({}); }

  std::atomic<std::thread::id> owner_{};
#else

private:
  void set_owner() noexcept {}
  void clear_owner() noexcept {}
#endif

  std::mutex mutex_;
};

} // namespace asio_rdma::detail
