// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/global/global_message.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <asio_rdma/remote_ptr.hpp>

#include "global/global_guest.hpp"
#include "global/segment_allocator.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

class global_memory_impl;

/// A node and the segments that it hosts, shared by its views. Thread-safe.
class global_node {
public:
  /// Bytes at the beginning of each segment, for its root.
  static constexpr std::uint64_t reserved = 64;

  global_node(const memory_pool& pool, node_id id);
  ~global_node();

  /// Adds a segment. An error once the node has introduced itself.
  error_code host(std::uint64_t bytes, segment_id& given);
  global_message introduction(global_message::kind what);
  /// Carries out a request of the owner's or of a peer's, and returns the answer. Descriptors of
  /// locks are never freed: a former party may still write to descriptors of others.
  global_message serve(const global_message& request);

  /// Bytes of a block that are zeroed in one turn of a context.
  static constexpr std::size_t most_zeroed = std::size_t(4) << 20;
  /// An allocated block that is not zeroed yet. It cannot be freed.
  struct unzeroed {
    segment_id segment = 0;
    std::uint64_t begin = 0, done = 0, bytes = 0;
  };
  /// If the request allocates more than `most_zeroed` bytes, the block is not zeroed: call
  /// `zero_some` until that returns true, and answer then.
  global_message serve(const global_message& request, unzeroed& block);
  /// Zeroes the next bytes. Returns whether these were the last.
  bool zero_some(unzeroed& block) noexcept;
  /// The address of the bytes, or null if they are not in a segment of this node.
  void* local(remote_word p, std::uint64_t bytes, std::uint64_t alignment) const noexcept;

  /// Marks descriptors of locks whose party has died or left.
  void mark_dead(segment_id where, std::uint64_t offset, std::uint64_t count) const noexcept;
  /// Returns shared lanes: those of the object with the fewest users, if there are `most` objects;
  /// otherwise those of a new object from `make`. Null with the error if that fails.
  std::shared_ptr<global_memory_impl>
  share(std::size_t most,
        const std::function<std::shared_ptr<global_memory_impl>(error_code&)>& make,
        error_code& ec);
  /// The node's guest, made by the first call.
  node_guest& guest(std::unique_ptr<node_guest> (*make)(global_node&)) {
    std::call_once(guest_made_, [&] { guest_ = make(*this); });
    return *guest_;
  }

  node_id id() const noexcept { return id_; }
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  bool hosts() const;
  const memory_pool& pool() const noexcept { return pool_; }

private:
  struct segment {
    registered_buffer memory;
    segment_allocator space;
  };

  const memory_pool pool_;
  const node_id id_;
  const std::uint64_t incarnation_;
  mutable std::mutex mutex_;
  std::array<std::atomic<segment*>, global_message::max_segments> published_{};
  std::deque<segment> segments_;
  std::atomic<std::uint64_t> zeroed_{0}; // counts the allocations; orders the zeroing before uses
                                         // of the memory
  bool introduced_ = false;              // a peer knows the segments
  std::once_flag guest_made_;
  std::unique_ptr<node_guest> guest_;

  std::mutex sharing_mutex_; // locked before `mutex_`
  std::vector<std::weak_ptr<global_memory_impl>> sharing_;
};

} // namespace asio_rdma::detail
