// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_pool.hpp>
#include <boost/asio/execution_context.hpp>

#include "core/background_calls.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// The allocation of a block on a background thread, because its memory is registered first, or
/// because preparing the block takes long.
class slow_allocation : public background_call {
public:
  slow_allocation(const memory_pool& pool, std::size_t bytes) : pool_(pool), bytes_(bytes) {}

  std::size_t bytes() const noexcept { return bytes_; }
  /// Whether the pool counts the bytes as in use, or has refused them.
  bool has_begun() const noexcept { return begun_.load(std::memory_order_relaxed); }
  /// Whether the block takes its bytes from the same limit as those of the pool.
  bool shares_limit(const memory_pool& pool) const noexcept;
  bool is_done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// The block, or an empty buffer with the error: those of `memory_pool::allocate`. Called once,
  /// after `is_done`.
  registered_buffer take(error_code& ec) noexcept;

protected:
  const memory_pool& pool() const noexcept { return pool_; }

private:
  /// Called on the background thread with the block, unless there is an error.
  virtual void prepare(const registered_buffer&, error_code&) noexcept {}
  void run(const std::shared_ptr<background_call>& self) noexcept override;

  const memory_pool pool_;
  const std::size_t bytes_;
  registered_buffer block_;
  error_code ec_;
  std::atomic<bool> begun_{false}, done_{false};
};

/// The allocations of an execution context that its peers ask for. Registering or clearing much
/// memory takes so long that other connections would wait, so the context's threads do so only up
/// to `most_a_period` bytes. Background threads do the rest.
class slow_allocations final : public asio::execution_context::service {
public:
  using key_type = slow_allocations;
  static asio::execution_context::id id;

  /// The bytes that the peers of all connections can make the context's threads register or clear
  /// in one `period`. Blocks of up to 64 KiB do not count.
  static constexpr std::size_t most_a_period = std::size_t(16) << 20;
  static constexpr std::chrono::milliseconds period{100};

  explicit slow_allocations(asio::execution_context& context);

  static slow_allocations& of(asio::execution_context& context);

  /// Whether the calling thread of the context may allocate a block of more than 64 KiB now, clear
  /// it and register a key of `key_bytes` bytes. If so, the bytes are counted.
  bool admits(const memory_pool& pool, std::size_t bytes, std::size_t key_bytes = 0) noexcept;
  /// Starts an `Allocation`, which is a `slow_allocation`, with these arguments. Returns null if no
  /// thread can make it. The end of an allocation is not reported: look again after `pause()`.
  template <class Allocation, class... Arguments>
  std::shared_ptr<Allocation> start(Arguments&&... arguments) noexcept {
    if (!has_threads())
      return nullptr;
    try {
      auto result = std::make_shared<Allocation>(std::forward<Arguments>(arguments)...);
      return start(result) ? result : nullptr;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  /// The caller does not wait for the allocation any more: it is not made if no thread has begun
  /// it.
  void cancel(const slow_allocation& a) noexcept { threads_for(a.bytes()).take_back(a); }
  /// Grows with the number of allocations that wait, so that looking costs little.
  std::chrono::microseconds pause() const noexcept;
  /// The bytes of allocations from the pool's limit that wait for a thread. The pool does not count
  /// them yet.
  std::uint64_t bytes_waiting(const memory_pool& pool) noexcept;

private:
  void shutdown() override {
    short_calls_.stop();
    long_calls_.stop();
  }

  bool has_threads();
  bool start(const std::shared_ptr<slow_allocation>& a);
  background_calls& threads_for(std::size_t bytes) noexcept {
    return bytes <= most_a_period ? short_calls_ : long_calls_;
  }
  void forget_begun() noexcept;

  background_calls short_calls_, long_calls_;    // so that no short allocation waits for a long one
  std::mutex mutex_;                             // guards the following members
  std::chrono::steady_clock::time_point paid_{}; // each counted byte moves this on
  std::vector<std::weak_ptr<slow_allocation>> waiting_; // and some that have begun
};

} // namespace asio_rdma::detail
