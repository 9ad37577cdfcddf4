// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/memory/memory_pool_impl.hpp>
#include <asio_rdma/memory_pool_options.hpp>
#include <asio_rdma/registered_buffer.hpp>

#include <cstddef>
#include <optional>
#include <utility>

namespace asio_rdma {

/// A pool of registered memory. A cheap, shared handle: copies refer to the same pool, which lives
/// until the last copy and the last buffer are destroyed. Safe from any thread.
///
/// Memory is registered in arenas, on demand. An allocation that needs a new arena takes as long as
/// its registration (ibv_reg_mr(3)); `reserve` avoids that. Otherwise blocks of up to 64 KiB are
/// allocated and returned in constant time and without the heap. Larger blocks are whole pages.
class memory_pool {
public:
  static constexpr std::size_t default_alignment = detail::cache_line;
  static constexpr std::size_t max_alignment = detail::page_bytes;

  /// A handle without a pool. Every other member but `is_open` and assignment needs a pool.
  memory_pool() noexcept = default;
  /// Creates a pool. Memory is registered later.
  explicit memory_pool(const protection_domain& pd, const memory_pool_options& options = {});
  /// A pool with another implementation.
  explicit memory_pool(detail::memory_pool_ptr impl) noexcept : impl_(std::move(impl)) {}

  bool is_open() const noexcept { return impl_ != nullptr; }
  const protection_domain& get_protection_domain() const noexcept { return pd_; }

  /// Allocates a buffer of exactly `bytes` (for 0 an empty buffer), at a multiple of `alignment`,
  /// which is a power of two up to `max_alignment`. Its content is indeterminate, unless
  /// `memory_pool_options::zeroed` is set. Errors: `error::pool_limit`; those of `memory_region` if
  /// memory cannot be registered, such as `error::memory_limit`; `invalid_argument` for the
  /// alignment; `no_memory`.
  registered_buffer allocate(std::size_t bytes, std::size_t alignment, error_code& ec) const {
    if (bytes == 0) {
      ec.clear();
      return {};
    }
    detail::memory_block* const block = impl_->allocate(bytes, alignment, ec);
    return block != nullptr ? registered_buffer(block) : registered_buffer();
  }
  registered_buffer allocate(std::size_t bytes, error_code& ec) const {
    return allocate(bytes, default_alignment, ec);
  }
  registered_buffer allocate(std::size_t bytes, std::size_t alignment = default_alignment) const {
    error_code ec;
    registered_buffer result = allocate(bytes, alignment, ec);
    detail::throw_if(ec, "memory_pool::allocate");
    return result;
  }

  /// Registers memory until the pool has `bytes` in total, in use or not. Errors: as `allocate`.
  void reserve(std::size_t bytes, error_code& ec) const { impl_->reserve(bytes, ec); }
  void reserve(std::size_t bytes) const {
    error_code ec;
    reserve(bytes, ec);
    detail::throw_if(ec, "memory_pool::reserve");
  }

  /// Releases the arenas of which no block is in use, and returns the number of bytes released.
  /// Before that, it tries again to release memory that a device had refused to release
  /// (`error::device_keeps_memory`).
  std::size_t trim() const noexcept;

  /// The bytes with their lkey, if they are in the pool's memory, such as a part of one of its
  /// buffers. Takes a time logarithmic in the number of arenas.
  std::optional<mutable_buffer> find(const void* data, std::size_t bytes) const noexcept {
    return impl_->find(data, bytes);
  }
  std::optional<mutable_buffer> find(const asio::const_buffer& buffer) const noexcept {
    return find(buffer.data(), buffer.size());
  }

  memory_pool_statistics statistics() const noexcept { return impl_->statistics(); }

  friend bool operator==(const memory_pool& a, const memory_pool& b) noexcept {
    return a.impl_ == b.impl_;
  }

private:
  protection_domain pd_;
  detail::memory_pool_ptr impl_;
};

} // namespace asio_rdma
