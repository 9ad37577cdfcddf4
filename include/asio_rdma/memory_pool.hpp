// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/memory_pool_impl.hpp>
#include <asio_rdma/memory_pool_options.hpp>
#include <asio_rdma/registered_buffer.hpp>

#include <cstddef>
#include <optional>
#include <utility>

namespace asio_rdma {

/// Registered memory, handed out by size. A cheap, shared handle: copies mean the same pool, which
/// lives until the last copy and the last buffer are gone. Safe from any thread.
///
/// Memory is registered in arenas, when it is needed: then `allocate` takes as long as that
/// (ibv_reg_mr(3)), unless `reserve` has been there before. Otherwise blocks of up to 64 KiB are
/// allocated and returned in constant time and without the heap. Larger blocks are whole pages.
class memory_pool {
public:
  static constexpr std::size_t default_alignment = detail::cache_line;
  static constexpr std::size_t max_alignment = detail::page_bytes;

  /// No pool; every other member but `is_open` and assignment needs one.
  memory_pool() noexcept = default;
  /// Registers nothing yet.
  explicit memory_pool(const protection_domain& pd, const memory_pool_options& options = {});
  /// A pool of other memory.
  explicit memory_pool(detail::memory_pool_ptr impl) noexcept : impl_(std::move(impl)) {}

  bool is_open() const noexcept { return impl_ != nullptr; }
  const protection_domain& get_protection_domain() const noexcept { return pd_; }

  /// A buffer of exactly `bytes` (of none: an empty one), at a multiple of `alignment`, which is a
  /// power of two up to `max_alignment`. Its content is indeterminate, unless the pool's options
  /// say otherwise. Errors: `error::pool_limit`; those of `memory_region` when memory cannot be
  /// registered, such as `error::memory_limit`; `invalid_argument` for the alignment; `no_memory`.
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

  /// Registers so much memory that the pool has `bytes` of it, in use or not. Errors: as
  /// `allocate`.
  void reserve(std::size_t bytes, error_code& ec) const { impl_->reserve(bytes, ec); }
  void reserve(std::size_t bytes) const {
    error_code ec;
    reserve(bytes, ec);
    detail::throw_if(ec, "memory_pool::reserve");
  }

  /// Gives back the arenas of which nothing is in use. Gives their bytes. First tries again to free
  /// what is kept in use because a device did not let go of it (`error::device_keeps_memory`).
  std::size_t trim() const noexcept;

  /// The bytes with their lkey, if they lie in the pool's memory: a part of one of its buffers, for
  /// instance. Takes a time logarithmic in the number of arenas.
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
