// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/access_state.hpp>
#include <boost/smart_ptr/intrusive_ptr.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace asio_rdma {
class memory_region;
}

namespace asio_rdma::detail {

/// What is known of a piece of registered memory that buffers share: a block of a pool, or a
/// region of the user's. It lies apart from the memory, so that the memory has any alignment and
/// no device can reach this.
struct memory_block {
  using disposer = void (*)(memory_block*) noexcept;

  memory_block() = default;
  memory_block(const memory_block&) = delete;

  friend void intrusive_ptr_add_ref(memory_block* b) noexcept {
    b->references.fetch_add(1, std::memory_order_relaxed);
  }
  friend void intrusive_ptr_release(memory_block* b) noexcept {
    if (b->release())
      b->dispose(b);
  }
  /// Gives up a reference. True if it was the last: the block is to be disposed of.
  bool release() noexcept {
    // The holder of the only reference needs no atomic exchange: nobody else could copy it.
    return references.load(std::memory_order_acquire) == 1 ||
           references.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  std::atomic<std::uint32_t> references{0};
  std::uint32_t lkey = 0;
  char* data = nullptr;
  std::size_t size = 0; ///< As it was asked for.
  const memory_region* region = nullptr;
  disposer dispose = nullptr;
  bool of_user = false;             ///< Disposing of it calls the user's code.
  void* owner = nullptr;            ///< What `dispose` gives it back to.
  memory_block* next = nullptr;     ///< While nobody has it; of one that is no slab's, always.
  memory_block* previous = nullptr; ///< Of one that is no slab's, while somebody has it.
  access_state access;
};

using memory_block_ptr = boost::intrusive_ptr<memory_block>;

} // namespace asio_rdma::detail
