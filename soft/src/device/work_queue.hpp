// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_WORK_QUEUE_HPP
#define SOFT_DEVICE_WORK_QUEUE_HPP

#include "device/memory.hpp"
#include "device/objects.hpp"
#include "engine/spin_mutex.hpp"

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <memory>
#include <mutex>
#include <ratio>

namespace soft {

/// A ring of requests, each followed by room for its elements or inline data. The program's threads
/// add, the engine takes.
template <class Request>
class request_ring {
public:
  /// For `capacity` requests with `extra` bytes each.
  request_ring(unsigned capacity, std::size_t extra)
      : capacity_(capacity),
        mask_(std::bit_ceil(capacity == 0 ? 1u : capacity) - 1),
        stride_((sizeof(Request) + extra + 63) & ~std::size_t(63)),
        memory_(new (std::align_val_t(64)) std::byte[stride_ * (mask_ + 1)]) {
    for (unsigned i = 0; i <= mask_; ++i)
      new (memory_.get() + stride_ * i) Request();
  }

  unsigned capacity() const noexcept { return capacity_; }
  /// How many requests are in the ring. From any thread.
  unsigned size() const noexcept { return static_cast<unsigned>(added_.load() - taken_.load()); }

  // ---- for the program, one thread at a time
  /// The place for another request behind `n` that are not added yet, or nullptr if the ring is
  /// full.
  Request* place(unsigned n = 0) noexcept {
    const std::uint64_t at = added_.load(std::memory_order_relaxed) + n;
    return at - taken_.load(std::memory_order_acquire) >= capacity_ ? nullptr : &slot(at);
  }
  /// Adds the requests in the first `n` free places, all at once.
  void add(unsigned n = 1) noexcept { added_.store(added_.load(std::memory_order_relaxed) + n); }

  // ---- for the engine
  /// The `n`th request, or nullptr.
  Request* at(unsigned n) noexcept {
    const std::uint64_t i = taken_.load(std::memory_order_relaxed) + n;
    return i >= added_.load() ? nullptr : &slot(i);
  }
  Request* front() noexcept { return at(0); }
  /// The number of requests that were added before the `n`th.
  std::uint64_t position(unsigned n) const noexcept {
    return taken_.load(std::memory_order_relaxed) + n;
  }
  void take() noexcept {
    taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

private:
  Request& slot(std::uint64_t i) noexcept {
    return *std::launder(reinterpret_cast<Request*>(memory_.get() + stride_ * (i & mask_)));
  }
  struct free_aligned {
    void operator()(std::byte* p) const noexcept { operator delete[](p, std::align_val_t(64)); }
  };

  const unsigned capacity_, mask_;
  const std::size_t stride_;
  const std::unique_ptr<std::byte[], free_aligned> memory_;
  alignas(64) std::atomic<std::uint64_t> added_{0};
  alignas(64) std::atomic<std::uint64_t> taken_{0};
};

/// Whether the requests fetch bytes of the peer: READs and atomic operations, which
/// `max_rd_atomic` counts.
constexpr bool fetches(ibv_wr_opcode o) noexcept {
  return o == IBV_WR_RDMA_READ || o == IBV_WR_ATOMIC_CMP_AND_SWP ||
         o == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/// The rights that the memory of the requests must have.
constexpr unsigned rights_for(ibv_wr_opcode o) noexcept {
  return fetches(o) ? IBV_ACCESS_LOCAL_WRITE : 0;
}

struct receive_work {
  std::uint64_t wr_id;
  std::uint32_t count;
  ibv_sge* elements() noexcept { return reinterpret_cast<ibv_sge*>(this + 1); }
};

struct send_work {
  std::uint64_t wr_id;
  ibv_wr_opcode opcode;
  unsigned flags;          ///< IBV_SEND_*; the queue's sq_sig_all included
  std::uint32_t immediate; ///< or the key to invalidate
  std::uint16_t count;
  std::uint16_t inline_bytes; ///< the data itself lies in place of the elements
  std::uint32_t posted;       ///< in `post_tick`s; only if the wire has a latency
  std::uint32_t key;
  union {
    struct {
      std::uint64_t address, compare_add, swap;
      window_binding binding;
    };
    datagram_way way; ///< of type UD
  };
  std::uint32_t qp_num, q_key;

  ibv_sge* elements() noexcept { return reinterpret_cast<ibv_sge*>(this + 1); }
  std::byte* data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  /// How many bytes the elements have, or the inline data.
  std::uint64_t bytes() noexcept {
    std::uint64_t sum = inline_bytes;
    if ((flags & IBV_SEND_INLINE) == 0)
      for (unsigned i = 0; i < count; ++i)
        sum += elements()[i].length;
    return sum;
  }
};
/// The unit of `send_work::posted`. The time since a post is known up to 68 seconds.
using post_tick = std::chrono::duration<std::int64_t, std::ratio<16, 1'000'000'000>>;

static_assert(sizeof(send_work) % alignof(ibv_sge) == 0 &&
              sizeof(receive_work) % alignof(ibv_sge) == 0);

} // namespace soft

#endif
