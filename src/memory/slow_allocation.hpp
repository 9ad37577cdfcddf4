// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_pool.hpp>
#include <boost/asio/execution_context.hpp>

#include "core/background_calls.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

/// The allocation of a block whose memory is registered first, on a background thread.
class slow_allocation final : public background_call {
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

private:
  void run(const std::shared_ptr<background_call>& self) noexcept override;

  const memory_pool pool_;
  const std::size_t bytes_;
  registered_buffer block_;
  error_code ec_;
  std::atomic<bool> begun_{false}, done_{false};
};

/// The background threads of an execution context that allocate blocks.
class slow_allocations final : public asio::execution_context::service {
public:
  using key_type = slow_allocations;
  static asio::execution_context::id id;

  explicit slow_allocations(asio::execution_context& context);

  static slow_allocations& of(asio::execution_context& context);

  /// Returns null if no thread can make the allocation. The end of an allocation is not reported:
  /// look again after some time.
  std::shared_ptr<slow_allocation> start(const memory_pool& pool, std::size_t bytes) noexcept;
  /// The bytes of allocations from the pool's limit that wait for a thread. The pool does not count
  /// them yet.
  std::uint64_t bytes_waiting(const memory_pool& pool) noexcept;

private:
  void shutdown() override { calls_.stop(); }

  background_calls calls_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<slow_allocation>> waiting_; // and some that have begun
};

} // namespace asio_rdma::detail
