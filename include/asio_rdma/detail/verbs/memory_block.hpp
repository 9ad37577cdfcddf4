// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/verbs/access_state.hpp>
#include <boost/smart_ptr/intrusive_ptr.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
namespace asio_rdma {
class memory_region;
}

namespace asio_rdma::detail {

/// The record of registered memory that buffers share: a block of a pool, or a region of the
/// user's. It is separate from the memory, so that the memory may have any alignment and no device
/// can access the record.
struct memory_block {
  using disposer = void (*)(memory_block*) noexcept;

  memory_block() = default;
  memory_block(const memory_block&) = delete;

  // boost::intrusive_ptr finds these by argument-dependent lookup.
  friend void intrusive_ptr_add_ref(memory_block* b) noexcept {
    b->references.fetch_add(1, std::memory_order_relaxed);
  }
  friend void intrusive_ptr_release(memory_block* b) noexcept {
    if (b->release())
      b->dispose(b);
  }
  /// Drops a reference. Returns true if it was the last: the caller must then call `dispose`.
  bool release() noexcept {
    // The holder of the only reference needs no atomic exchange: no other thread can copy it.
    return references.load(std::memory_order_acquire) == 1 ||
           references.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  std::atomic<std::uint32_t> references{0};
  std::uint32_t lkey = 0;
  char* data = nullptr;
  std::size_t size = 0; ///< The size that was requested.
  const memory_region* region = nullptr;
  disposer dispose = nullptr;
  bool of_user = false;             ///< `dispose` calls code of the user's.
  void* owner = nullptr;            ///< The object to which `dispose` returns the block.
  memory_block* next = nullptr;     ///< Of a slab: the next free block. Otherwise the next in the
                                    ///< pool's list of free or used blocks.
  memory_block* previous = nullptr; ///< Not of a slab: the previous block in use.
  access_state access;
};

using memory_block_ptr = boost::intrusive_ptr<memory_block>;

} // namespace asio_rdma::detail
#pragma GCC visibility pop
