// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/mutex.hpp>

#include "core/thread_mark.hpp"

#include <atomic>
#include <cassert>

namespace asio_rdma::detail {

/// A mutex for data that one thread uses nearly always, and others at times. It has an owner: the
/// first thread that calls `lock_as_owner`. The owner needs no locked instruction. The first other
/// thread that locks the mutex ends the ownership for good, which takes microseconds. From then on
/// the mutex is a plain `mutex`.
/// Source: membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED. Without it (before Linux 4.14, or
/// refused) the mutex has no owner.
class biased_mutex {
public:
  biased_mutex() noexcept = default;
  biased_mutex(const biased_mutex&) = delete;

  /// Prepares the process for owners. The first lock as owner does it otherwise; it may take
  /// milliseconds. Returns false if there are no owners.
  static bool prepare() noexcept;

  [[gnu::always_inline]] void lock() noexcept {
    if (!lock_owned(thread_mark())) [[unlikely]]
      lock_shared();
  }
  /// Makes this thread the owner, unless the mutex has or had one.
  [[gnu::always_inline]] void lock_as_owner() noexcept {
    if (!lock_owned(thread_mark())) [[unlikely]]
      lock_first();
  }
  [[gnu::always_inline]] void unlock() noexcept {
    if (inside_.load(std::memory_order_relaxed) == thread_mark()) [[likely]]
      inside_.store(nullptr, std::memory_order_release);
    else
      mutex_.unlock();
  }

  /// Whether any thread has locked it. For assertions.
  bool is_locked() const noexcept {
    return mutex_.is_locked() || inside_.load(std::memory_order_relaxed) != nullptr;
  }

private:
  [[gnu::always_inline]] bool lock_owned(const void* thread) noexcept {
    if (owner_.load(std::memory_order_relaxed) != thread)
      return false;
    inside_.store(thread, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (owner_.load(std::memory_order_acquire) == thread) [[likely]]
      return true;
    inside_.store(nullptr, std::memory_order_release);
    return false;
  }
  void lock_shared() noexcept;
  void lock_first() noexcept;
  void end_ownership() noexcept;

  std::atomic<const void*> owner_{nullptr};  // a thread's mark, or `none_any_more`
  std::atomic<const void*> inside_{nullptr}; // the owner's mark while the owner has locked it
  mutex mutex_;                              // of all other threads
};

} // namespace asio_rdma::detail
