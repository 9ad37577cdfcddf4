// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/memory_pool.hpp>

#include "verbs/withheld.hpp"

namespace asio_rdma {

memory_pool::memory_pool(const protection_domain& pd, const memory_pool_options& options)
    : pd_(pd),
      impl_(new detail::memory_pool_impl(options, detail::registered_arenas(pd, options))) {}

std::size_t memory_pool::trim() const noexcept {
  detail::release_withheld();
  return impl_->trim();
}

} // namespace asio_rdma
