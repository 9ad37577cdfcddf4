// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>

#include <atomic>
#include <cstdint>

namespace asio_rdma::detail {

/// A mutex for the hot path. Without contention, locking and unlocking cost one inlined atomic
/// operation each; std::mutex costs 60 instructions for the pair.
class mutex {
public:
  mutex() noexcept = default;
  mutex(const mutex&) = delete;

  void lock() noexcept {
    std::uint32_t expected = free;
    if (!state_.compare_exchange_strong(expected, locked, std::memory_order_acquire)) [[unlikely]]
      lock_contended();
  }
  void unlock() noexcept {
    if (state_.exchange(free, std::memory_order_release) == contended) [[unlikely]]
      wake_one();
  }

  /// Whether any thread has locked it. For assertions.
  bool is_locked() const noexcept { return state_.load(std::memory_order_relaxed) != free; }

private:
  static constexpr std::uint32_t free = 0, locked = 1, contended = 2;

  [[gnu::noinline, gnu::cold]] void wake_one() noexcept { state_.notify_one(); }

  [[gnu::noinline, gnu::cold]] void lock_contended() noexcept {
    while (state_.exchange(contended, std::memory_order_acquire) != free)
      state_.wait(contended, std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> state_{free};
};

} // namespace asio_rdma::detail
