// SPDX-License-Identifier: BSL-1.0
#include "memory/slow_allocation.hpp"

#include "core/descriptor_watch.hpp"
#include "memory/memory_pool_impl.hpp"

#include <algorithm>
#include <utility>

namespace asio_rdma::detail {
namespace {

constexpr std::size_t most_threads = 2; // for long ones: they share the kernel's memory management

} // namespace

asio::execution_context::id slow_allocations::id;

registered_buffer slow_allocation::take(error_code& ec) noexcept {
  ec = ec_;
  return std::move(block_);
}

bool slow_allocation::shares_limit(const memory_pool& pool) const noexcept {
  return &pool_.impl()->counting() == &pool.impl()->counting();
}

void slow_allocation::run(const std::shared_ptr<background_call>&) noexcept {
  begun_.store(true, std::memory_order_relaxed);
  block_ = pool_.allocate(bytes_, ec_);
  if (!ec_)
    prepare(block_, ec_);
  done_.store(true, std::memory_order_release);
}

slow_allocations::slow_allocations(asio::execution_context& context)
    : asio::execution_context::service(context), short_calls_(1), long_calls_(most_threads) {}

slow_allocations& slow_allocations::of(asio::execution_context& context) {
  return asio::use_service<slow_allocations>(context);
}

// Each counted byte takes its part of the period. So a burst has at most `most_a_period` bytes, and
// the bytes of a longer time are those of its periods.
bool slow_allocations::admits(const memory_pool& pool, std::size_t bytes,
                              std::size_t key_bytes) noexcept {
  std::size_t count = pool.impl()->bytes_to_prepare(bytes);
  if (count > most_a_period || key_bytes > most_a_period - count)
    return false;
  count += key_bytes;
  const auto length =
      std::chrono::nanoseconds(period) * std::int64_t(count) / std::int64_t(most_a_period);
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  const auto until = std::max(paid_, now) + length;
  if (until > now + period)
    return false;
  paid_ = until;
  return true;
}

std::chrono::microseconds slow_allocations::pause() const noexcept {
  const std::size_t waiting = short_calls_.waiting() + long_calls_.waiting();
  return std::chrono::milliseconds(5) + std::chrono::microseconds(100) * std::int64_t(waiting);
}

// If the context's concurrency hint promises that no other thread uses the context, the program may
// rely on that for the pool as well.
bool slow_allocations::has_threads() {
  return asio::has_service<scheduler>(context()) &&
         may_be_queued_by_others(asio::use_service<scheduler>(context()));
}

bool slow_allocations::start(const std::shared_ptr<slow_allocation>& a) {
  {
    const std::lock_guard lock(mutex_);
    forget_begun();
    waiting_.push_back(a);
  }
  return !threads_for(a->bytes()).start(a);
}

void slow_allocations::forget_begun() noexcept {
  std::erase_if(waiting_, [](const std::weak_ptr<slow_allocation>& weak) {
    const auto a = weak.lock();
    return !a || a->has_begun();
  });
}

std::uint64_t slow_allocations::bytes_waiting(const memory_pool& pool) noexcept {
  const std::lock_guard lock(mutex_);
  forget_begun();
  std::uint64_t result = 0;
  for (const std::weak_ptr<slow_allocation>& weak : waiting_)
    if (const auto a = weak.lock(); a && a->shares_limit(pool))
      result += a->bytes();
  return result;
}

} // namespace asio_rdma::detail
