// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/mutex.hpp>
#include <asio_rdma/detail/verbs/memory_block.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <boost/intrusive/list.hpp>
#include <infiniband/verbs.h>

#include "core/checked_mutex.hpp"
#include "core/size_classes.hpp"
#include "memory/extent_map.hpp"
#include "memory/memory_arena.hpp"
#include "verbs/kept_blocks.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// The bookkeeping of a `memory_pool`. Blocks of up to 64 KiB come from slabs, with one list for
/// each size class. Larger blocks, and the slabs, are runs of pages of the arenas. Handles and
/// blocks count as references, so the pool exists until the last block is returned.
///
/// Each size class has a mutex, and `mutex_` guards the arenas. `growth_` is needed only to add
/// arenas and to take back slabs; while it is locked, any one of the others may be locked too. It
/// is not locked while a large arena is registered, which takes long, or one of a pool that is no
/// part is deregistered. `releasing_`, which is locked first, is for threads that need memory which
/// others do not use.
///
/// A *part* of another pool, which `memory_pool::in_own_domain` makes, takes each arena's bytes
/// from the limit of that pool. So its arenas and slabs are small, and it keeps at most one slab of
/// a class without a block in use. If more than a quarter of the limit is registered, it keeps no
/// arena without one.
class memory_pool_impl {
public:
  /// `whole`: the pool that the new one is a part of. It is no part itself.
  memory_pool_impl(const memory_pool_options& options, arena_maker maker, memory_pool whole = {});
  memory_pool_impl(const memory_pool_impl&) = delete;

  /// Returns a block of at least one byte with one reference, or null with the error.
  memory_block* allocate(std::size_t bytes, std::size_t alignment, error_code& ec) noexcept;
  /// Returns null if that registers or clears memory. More bytes than `largest_small`.
  memory_block* allocate_present(std::size_t bytes) noexcept;
  /// The bytes that `allocate` would register for a block of more bytes than `largest_small`. If it
  /// would register none, those of the block, and if it would deregister unused memory first, the
  /// largest number.
  std::size_t bytes_to_prepare(std::size_t bytes) const noexcept;
  void reserve(std::size_t bytes, error_code& ec) noexcept;
  std::size_t trim() noexcept;
  std::optional<mutable_buffer> find(const void* data, std::size_t bytes) const noexcept;
  /// The region of bytes in the pool's memory, if windows may be bound to it. It exists as long as
  /// the bytes are in use.
  const memory_region* find_bindable(const void* data, std::size_t bytes) const noexcept;
  memory_pool_statistics statistics() const noexcept;
  const memory_pool_options& options() const noexcept { return options_; }
  std::size_t limit() const noexcept { return options_.limit; }
  /// The pool that this one is a part of; not open if it is no part.
  const memory_pool& whole() const noexcept { return whole_; }
  /// The pool that counts the bytes of the limit: the whole, or this one.
  const memory_pool_impl& counting() const noexcept { return is_part() ? *whole_.impl() : *this; }
  /// The bytes in use of those that the limit applies to.
  std::size_t used() const noexcept { return counting().statistics().bytes_in_use; }
  /// Whether half of the limit stays unused with so many bytes more.
  bool leaves_half(std::uint64_t more) const noexcept { return used() + more <= limit() / 2; }

  /// Adds the blocks in use, of any pool of the process, in which the elements lie. For callers
  /// that must keep memory known only by its address. Slow.
  static void find_blocks(std::span<const ibv_sge> elements, kept_blocks& to) noexcept;

  // boost::intrusive_ptr calls these. They count the references; the last one destroys the pool.
  friend void intrusive_ptr_add_ref(memory_pool_impl* p) noexcept;
  friend void intrusive_ptr_release(memory_pool_impl* p) noexcept;

private:
  using hook =
      boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>;

  /// Bytes that a part has taken from the limit of the whole.
  class share {
  public:
    /// Without a pool the share is empty, and good.
    share(memory_pool_impl* from, std::size_t bytes) noexcept
        : from_(from), bytes_(bytes), good_(from == nullptr || from->take_share(bytes)) {}
    share(share&& other) noexcept
        : from_(std::exchange(other.from_, nullptr)), bytes_(other.bytes_), good_(other.good_) {}
    ~share() {
      if (from_ != nullptr && good_)
        from_->return_share(bytes_);
    }
    /// Whether the limit had room for it.
    bool good() const noexcept { return good_; }

  private:
    memory_pool_impl* from_;
    std::size_t bytes_;
    bool good_;
  };
  struct pages {
    pages(share s, std::unique_ptr<memory_arena> m);
    share of_limit;
    std::unique_ptr<memory_arena> memory;
    extent_map taken;
  };
  using arenas = std::vector<std::unique_ptr<pages>>; // in order of address
  struct run {
    memory_arena* arena = nullptr;
    char* data = nullptr;
  };
  struct size_class;
  struct slab : hook {
    memory_pool_impl* pool = nullptr;
    size_class* of = nullptr;
    memory_block* free = nullptr;
    std::size_t used = 0;
    char* data = nullptr;
    std::unique_ptr<memory_block[]> blocks;
  };
  using slab_list = boost::intrusive::list<slab, boost::intrusive::constant_time_size<false>>;
  struct alignas(cache_line) size_class {
    mutable detail::mutex mutex;
    slab_list with_free, full;
    std::size_t blocks_used = 0, bytes_used = 0;
  };

  ~memory_pool_impl();

  memory_block* allocate_small(std::size_t index, std::size_t bytes, error_code& ec);
  memory_block* allocate_pages(std::size_t bytes, error_code& ec);
  memory_block* make_block(std::size_t bytes, const run& r);
  memory_block* hand_out(memory_block* block, std::size_t bytes) noexcept;
  static memory_block* take(slab& from, std::size_t bytes) noexcept;
  static void return_small(memory_block* block) noexcept;
  static void return_pages(memory_block* block) noexcept;

  std::unique_ptr<slab> make_slab(std::size_t index, error_code& ec);
  bool reclaim_slabs() noexcept;

  bool is_part() const noexcept { return whole_.is_open(); }
  bool take_share(std::size_t bytes) noexcept;
  void return_share(std::size_t bytes) noexcept;
  bool is_pressed() const noexcept;

  run take_run(std::size_t bytes, error_code& ec);
  run take_present_run(std::size_t bytes) noexcept;
  std::size_t count_own_arena(std::size_t bytes) noexcept;
  run take_own_arena(std::size_t bytes, error_code& ec);
  void return_run(char* data) noexcept;
  bool grow(std::size_t bytes, error_code& ec);
  void insert(std::unique_ptr<pages>& added);
  std::size_t release_unused(std::size_t wanted) noexcept;
  std::unique_ptr<pages> remove(arenas::iterator which) noexcept;
  std::size_t deregister(std::unique_ptr<pages> removed) noexcept;
  std::uint64_t deregistrations() const noexcept;
  bool wait_for_deregistered(std::uint64_t before) noexcept;
  void log_lack(std::size_t bytes, std::size_t registered, const error_code& why) noexcept;
  std::size_t next_arena(std::size_t registered) const noexcept;
  std::size_t unregistered() const noexcept;
  std::size_t arena_size(std::size_t bytes, std::size_t room) const noexcept;
  std::unique_ptr<pages> make_arena(std::size_t registered, std::size_t room, std::size_t bytes,
                                    error_code& ec) const;
  const pages* arena_of(const void* address) const noexcept;
  const memory_arena* arena_with(const void* data, std::size_t bytes) const noexcept;
  static bool is_within(const char* address, const char* data, std::size_t bytes) noexcept;
  memory_block_ptr block_of(const char* address) noexcept;
  memory_block_ptr small_block_of(const char* address) noexcept;

  const memory_pool_options options_; // with whole pages
  const memory_pool whole_;           // exists as long as shares of its limit
  const std::size_t largest_small_;   // larger blocks are runs of pages
  const arena_maker maker_;
  std::atomic<std::size_t> references_{0};
  std::array<size_class, size_classes> classes_;

  std::mutex releasing_;
  checked_mutex growth_;
  std::chrono::steady_clock::time_point logged_at_{}; // guarded by `growth_`
  std::condition_variable_any deregistered_;
  mutable detail::mutex mutex_; // guards the following members
  arenas arenas_;
  std::size_t registered_ = 0; // with those that are being registered, or deregistered
  std::size_t to_come_ = 0;    // bytes of blocks whose arenas are being registered
  std::size_t leaving_ = 0;    // bytes of arenas that are being deregistered
  std::uint64_t deregistrations_ = 0;
  std::size_t of_parts_ = 0; // bytes that parts have registered; grows under `growth_` too
  std::size_t large_blocks_ = 0, large_bytes_ = 0;
  memory_block* spare_ = nullptr;
  memory_block* large_ = nullptr; // blocks in use
};

} // namespace asio_rdma::detail
