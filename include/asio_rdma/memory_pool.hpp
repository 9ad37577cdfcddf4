// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <boost/smart_ptr/intrusive_ptr.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace asio_rdma::detail {
class memory_pool_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

class memory_pool;

namespace detail {

void intrusive_ptr_add_ref(memory_pool_impl* p) noexcept;
void intrusive_ptr_release(memory_pool_impl* p) noexcept;
using memory_pool_ptr = boost::intrusive_ptr<memory_pool_impl>;
/// The region of bytes in the pool's memory, if memory windows may be bound to it.
const memory_region* find_bindable(const memory_pool& pool, const void* data,
                                   std::size_t bytes) noexcept;
/// Allocates more than 64 KiB, if that registers and clears no memory; otherwise the result is
/// empty.
registered_buffer allocate_present(const memory_pool& pool, std::size_t bytes) noexcept;

} // namespace detail

struct memory_pool_options {
  /// The access rights of all of the pool's memory. On iWARP, with `remote_write` a `queue_pair`
  /// can READ into the memory, and the peer that it reads from can write anywhere in it (RFC 5040,
  /// section 5.2). Connections and streams neither need nor allow that.
  access rights = access::local_write;
  /// Bytes of the first arena (2 MiB), rounded up to a page. Each further arena is as large as all
  /// earlier ones together, up to 8 MiB or a thirty-second of them. A block of more than 8 MiB gets
  /// an arena of its size.
  std::size_t first_arena = std::size_t(2) << 20;
  /// The maximum number of bytes that the pool registers (1 GiB).
  std::size_t limit = std::size_t(1) << 30;
  /// Whether arenas that are multiples of 2 MiB are to be of huge pages: reserved ones
  /// (/proc/sys/vm/nr_hugepages) if there are, else transparent ones (madvise(2), MADV_HUGEPAGE).
  bool huge_pages = true;
  /// Whether every buffer is zeroed when it is allocated.
  bool zeroed = false;
  /// Called once, with a message, if there are not enough reserved huge pages. The caller is
  /// `allocate` or `reserve`, so any function that allocates from the pool, or a thread of the
  /// library's that does so for a connection. It must not throw, and must use neither the pool nor
  /// objects that use the pool.
  std::function<void(std::string_view)> log;

  /// Each sets the member of its name and returns the options:
  /// `memory_pool_options().set_rights(…)`. Calls can be chained.
  ///@{
  memory_pool_options& set_rights(access value) { return detail::set(*this, rights, value); }
  memory_pool_options& set_first_arena(std::size_t value) {
    return detail::set(*this, first_arena, value);
  }
  memory_pool_options& set_limit(std::size_t value) { return detail::set(*this, limit, value); }
  memory_pool_options& set_huge_pages(bool value) { return detail::set(*this, huge_pages, value); }
  memory_pool_options& set_zeroed(bool value) { return detail::set(*this, zeroed, value); }
  memory_pool_options& set_log(std::function<void(std::string_view)> value) {
    return detail::set(*this, log, std::move(value));
  }
  ///@}
};

/// The state of a pool at one time. `bytes_registered` and `bytes_in_use` include all registered
/// bytes of the pools that `in_own_domain` has made of the pool.
struct memory_pool_statistics {
  std::size_t arenas = 0;
  std::size_t bytes_registered = 0;
  std::size_t bytes_huge = 0;    ///< Registered bytes in reserved huge pages.
  std::size_t blocks_in_use = 0; ///< Allocated and not returned.
  std::size_t bytes_in_use = 0;  ///< Requested bytes of these blocks.
};

/// A pool of registered memory. A cheap, shared handle: copies refer to the same pool, which lives
/// until the last copy and the last buffer are destroyed. Safe from any thread.
///
/// Memory is registered in arenas, on demand. An allocation that needs a new arena takes as long as
/// its registration (ibv_reg_mr(3)), which makes its pages present; `reserve` avoids that.
/// Otherwise blocks of up to 64 KiB are allocated and returned in constant time and without the
/// heap. Larger blocks are whole pages.
class memory_pool {
public:
  static constexpr std::size_t default_alignment = 64;
  static constexpr std::size_t max_alignment = 4096;

  /// A handle without a pool. Every other member but `is_open` and assignment needs a pool.
  memory_pool() noexcept = default;
  /// Creates a pool. Memory is registered later.
  explicit memory_pool(const protection_domain& pd, const memory_pool_options& options = {});
  /// A pool with another implementation.
  explicit memory_pool(detail::memory_pool_ptr impl) noexcept : impl_(std::move(impl)) {}

  /// A pool with the same options, in a new protection domain of the same device. A key of its
  /// memory is of no use to peers of other protection domains. The limit applies to this pool and
  /// all pools that were made of it together, also if they were made of one another. The new pool
  /// registers as little as possible: `first_arena` does not apply, and if more than a quarter of
  /// the limit is registered, an arena without a block in use is released at once. It keeps this
  /// pool alive. Errors: `bad_descriptor` for a pool or a protection domain that is not open, or
  /// the system's (ibv_alloc_pd(3)).
  memory_pool in_own_domain(error_code& ec) const;
  memory_pool in_own_domain() const {
    error_code ec;
    memory_pool result = in_own_domain(ec);
    detail::throw_if(ec, "memory_pool::in_own_domain");
    return result;
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  const protection_domain& get_protection_domain() const noexcept { return pd_; }

  /// Allocates a buffer of exactly `bytes` (for 0 an empty buffer), at a multiple of `alignment`,
  /// which is a power of two up to `max_alignment`. Its content is indeterminate, unless
  /// `memory_pool_options::zeroed` is set. Errors: `error::pool_limit`; those of `memory_region` if
  /// memory cannot be registered, such as `error::memory_limit`; `invalid_argument` for the
  /// alignment; `no_memory`.
  registered_buffer allocate(std::size_t bytes, std::size_t alignment, error_code& ec) const;
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
  void reserve(std::size_t bytes, error_code& ec) const;
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
  std::optional<mutable_buffer> find(const void* data, std::size_t bytes) const noexcept;
  std::optional<mutable_buffer> find(const asio::const_buffer& buffer) const noexcept {
    return find(buffer.data(), buffer.size());
  }
  std::optional<mutable_buffer> find(const mutable_buffer& buffer) const noexcept {
    return find(buffer.data(), buffer.size());
  }

  memory_pool_statistics statistics() const noexcept;
  /// The maximum number of bytes that the pool registers.
  std::size_t limit() const noexcept;
  const detail::memory_pool_ptr& impl() const noexcept { return impl_; }

  friend bool operator==(const memory_pool& a, const memory_pool& b) noexcept {
    return a.impl_ == b.impl_;
  }

private:
  friend const memory_region* detail::find_bindable(const memory_pool& pool, const void* data,
                                                    std::size_t bytes) noexcept;
  friend registered_buffer detail::allocate_present(const memory_pool& pool,
                                                    std::size_t bytes) noexcept;

  registered_buffer allocate_present(std::size_t bytes) const noexcept;

  memory_pool(detail::memory_pool_ptr impl, const protection_domain& pd) noexcept
      : pd_(pd), impl_(std::move(impl)) {}

  protection_domain pd_;
  detail::memory_pool_ptr impl_;
};

} // namespace asio_rdma
#pragma GCC visibility pop
