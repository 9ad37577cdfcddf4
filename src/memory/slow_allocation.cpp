// SPDX-License-Identifier: BSL-1.0
#include "memory/slow_allocation.hpp"

#include "core/descriptor_watch.hpp"
#include "memory/memory_pool_impl.hpp"

#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

constexpr std::size_t most_threads = 2; // they share the kernel's memory management

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
  done_.store(true, std::memory_order_release);
}

slow_allocations::slow_allocations(asio::execution_context& context)
    : asio::execution_context::service(context), calls_(most_threads) {}

slow_allocations& slow_allocations::of(asio::execution_context& context) {
  return asio::use_service<slow_allocations>(context);
}

// If the context's concurrency hint promises that no other thread uses the context, the program may
// rely on that for the pool as well.
std::shared_ptr<slow_allocation> slow_allocations::start(const memory_pool& pool,
                                                         std::size_t bytes) noexcept {
  if (!asio::has_service<scheduler>(context()) ||
      !may_be_queued_by_others(asio::use_service<scheduler>(context())))
    return nullptr;
  try {
    auto result = std::make_shared<slow_allocation>(pool, bytes);
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(result);
    }
    return calls_.start(result) ? nullptr : result;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

std::uint64_t slow_allocations::bytes_waiting(const memory_pool& pool) noexcept {
  const std::lock_guard lock(mutex_);
  std::uint64_t result = 0;
  std::erase_if(waiting_, [&](const std::weak_ptr<slow_allocation>& weak) {
    const auto a = weak.lock();
    if (a && !a->has_begun() && a->shares_limit(pool))
      result += a->bytes();
    return !a || a->has_begun();
  });
  return result;
}

} // namespace asio_rdma::detail
