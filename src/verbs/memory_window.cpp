// SPDX-License-Identifier: BSL-1.0
#include "verbs/memory_window_impl.hpp"

#include "core/device_files.hpp"
#include "verbs/withheld.hpp"

#include <cassert>
#include <cerrno>

namespace asio_rdma {
namespace detail {

memory_window_impl::memory_window_impl(const protection_domain& pd, ibv_mw* mw,
                                       ownership owns) noexcept
    : pd_(pd), mw_(mw), first_key_(mw->rkey), owns_(owns) {}

memory_window_impl::~memory_window_impl() {
  close();
  if (!queue_pair_)
    return;
  const std::lock_guard lock(queue_pair_->mutex_);
  unlink();
}

error_code memory_window_impl::close() noexcept {
  const std::lock_guard own(mutex_);
  if (!queue_pair_)
    return free();
  // Holds the lock until the window is free, so that its queue pair does not end before.
  const std::lock_guard lock(queue_pair_->mutex_);
  const error_code ec = free();
  if (!ec)
    unlink();
  return ec;
}

std::uint32_t memory_window_impl::next_key() noexcept {
  std::uint32_t last = rkey_;
  std::uint32_t next = 0;
  do
    next = ibv_inc_rkey(last != 0 ? last : first_key_);
  while (!rkey_.compare_exchange_weak(last, next));
  return next;
}

error_code memory_window_impl::give_to(const std::shared_ptr<bound_windows>& queue_pair) {
  assert(queue_pair != nullptr);
  const std::lock_guard lock(mutex_);
  if (native_handle() == nullptr)
    return asio::error::bad_descriptor;
  if (!queue_pair_) {
    queue_pair_ = queue_pair;
    const std::lock_guard list_lock(queue_pair->mutex_);
    queue_pair->all_.push_back(*this);
  }
  return queue_pair_ == queue_pair ? error_code() : asio::error::invalid_argument;
}

error_code memory_window_impl::free() noexcept {
  ibv_mw* const mw = mw_;
  if (mw != nullptr && owns_ == ownership::take)
    if (const int e = end_use(pd_.get_device(), &ibv_dealloc_mw, mw))
      return system_error_code(e);
  mw_ = nullptr;
  return {};
}

bool bound_windows::free_all() noexcept {
  const std::lock_guard lock(mutex_);
  while (!all_.empty() && !all_.front().free())
    all_.pop_front();
  return all_.empty();
}

// Declared in a header of a higher folder, by which programs call it.
[[gnu::visibility("default")]] ibv_mw* native_handle(const memory_window_impl& window) noexcept {
  return window.native_handle();
}

std::shared_ptr<memory_window_impl> make_window(const protection_domain& pd, error_code& ec) {
  ec.clear();
  if (!pd.is_open())
    ec = asio::error::bad_descriptor;
  else if (!pd.get_device().has_memory_windows())
    ec = asio::error::operation_not_supported;
  if (ec)
    return nullptr;
  ibv_mw* const mw = ibv_alloc_mw(pd.native_handle(), IBV_MW_TYPE_2);
  if (mw == nullptr) {
    ec = creation_error();
    return nullptr;
  }
  try {
    return std::make_shared<memory_window_impl>(pd, mw, ownership::take);
  } catch (...) {
    ibv_dealloc_mw(mw);
    throw;
  }
}

} // namespace detail

memory_window::memory_window(const protection_domain& pd, error_code& ec)
    : impl_(detail::make_window(pd, ec)) {}

memory_window::memory_window(const protection_domain& pd) {
  error_code ec;
  *this = memory_window(pd, ec);
  detail::throw_if(ec, "ibv_alloc_mw");
}

memory_window::memory_window(const protection_domain& pd, native_handle_type mw, ownership owns) {
  if (mw != nullptr)
    impl_ = std::make_shared<detail::memory_window_impl>(pd, mw, owns);
}

memory_window::native_handle_type memory_window::native_handle() const noexcept {
  return impl_ ? impl_->native_handle() : nullptr;
}

std::uint32_t memory_window::rkey() const noexcept { return impl_ ? impl_->rkey() : 0; }

} // namespace asio_rdma
