// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/memory_pool.hpp>

#include "memory/memory_pool_impl.hpp"
#include "verbs/withheld.hpp"

namespace asio_rdma {

static_assert(memory_pool::default_alignment == detail::cache_line);
static_assert(memory_pool::max_alignment == detail::page_bytes);

memory_pool::memory_pool(const protection_domain& pd, const memory_pool_options& options)
    : pd_(pd),
      impl_(new detail::memory_pool_impl(options, detail::registered_arenas(pd, options))) {}

memory_pool memory_pool::in_own_domain(error_code& ec) const {
  ec = asio::error::bad_descriptor;
  if (impl_ == nullptr || !pd_.is_open())
    return {};
  const protection_domain own(pd_.get_device(), ec);
  if (ec)
    return {};
  const memory_pool& whole = impl_->whole().is_open() ? impl_->whole() : *this;
  const memory_pool_options& o = whole.impl_->options();
  detail::memory_pool_ptr impl(
      new detail::memory_pool_impl(o, detail::registered_arenas(own, o), whole));
  return {std::move(impl), own};
}

registered_buffer memory_pool::allocate(std::size_t bytes, std::size_t alignment,
                                        error_code& ec) const {
  if (bytes == 0) {
    ec.clear();
    return {};
  }
  detail::memory_block* const block = impl_->allocate(bytes, alignment, ec);
  return block != nullptr ? registered_buffer(block) : registered_buffer();
}

void memory_pool::reserve(std::size_t bytes, error_code& ec) const { impl_->reserve(bytes, ec); }

std::size_t memory_pool::trim() const noexcept {
  detail::release_withheld();
  return impl_->trim();
}

std::optional<mutable_buffer> memory_pool::find(const void* data,
                                                std::size_t bytes) const noexcept {
  return impl_->find(data, bytes);
}

const memory_region* detail::find_bindable(const memory_pool& pool, const void* data,
                                           std::size_t bytes) noexcept {
  return pool.impl_->find_bindable(data, bytes);
}

registered_buffer detail::allocate_present(const memory_pool& pool, std::size_t bytes) noexcept {
  return pool.allocate_present(bytes);
}

registered_buffer memory_pool::allocate_present(std::size_t bytes) const noexcept {
  detail::memory_block* const block = impl_->allocate_present(bytes);
  return block != nullptr ? registered_buffer(block) : registered_buffer();
}

memory_pool_statistics memory_pool::statistics() const noexcept { return impl_->statistics(); }

std::size_t memory_pool::limit() const noexcept { return impl_->limit(); }

} // namespace asio_rdma
