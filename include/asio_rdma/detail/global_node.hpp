// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/alock_layout.hpp>
#include <asio_rdma/detail/global_message.hpp>
#include <asio_rdma/detail/segment_allocator.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <asio_rdma/remote_ptr.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace asio_rdma::detail {

class alock_locals;
class global_memory_impl;

/// What a node is and what it hosts, which its views share. Safe from any thread.
class global_node {
public:
  /// Of each segment, for its root.
  static constexpr std::uint64_t reserved = 64;

  global_node(const memory_pool& pool, node_id id);
  ~global_node();

  /// Adds a segment, before anybody is told of the node.
  error_code host(std::uint64_t bytes, segment_id& given);
  global_message introduction(global_message::kind what);
  /// A request of the owner's or of a peer's; gives the answer. Descriptors of locks are never
  /// freed: who has used a lock may yet write to those of others.
  global_message serve(const global_message& request);
  /// The bytes, if they lie in a segment of this node; else null.
  void* local(remote_word p, std::uint64_t bytes, std::uint64_t alignment) const noexcept;

  /// Who has made these descriptors of locks has died, or has left.
  void mark_dead(segment_id where, std::uint64_t offset, std::uint64_t count) const noexcept;
  /// The lanes of the least used of `most` objects that share theirs: of a new one, as `make` makes
  /// it, as long as they are fewer. Null if that fails, with the error.
  std::shared_ptr<global_memory_impl>
  share(std::size_t most,
        const std::function<std::shared_ptr<global_memory_impl>(error_code&)>& make,
        error_code& ec);
  /// Those that take locks of this node by the CPU.
  alock_locals& local_parties() noexcept { return *local_parties_; }

  node_id id() const noexcept { return id_; }
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  bool hosts() const;
  const memory_pool& pool() const noexcept { return pool_; }

private:
  struct segment {
    registered_buffer memory;
    segment_allocator space;
    std::set<std::uint64_t> descriptors; // where there are some
  };

  const memory_pool pool_;
  const node_id id_;
  const std::uint64_t incarnation_;
  mutable std::mutex mutex_;
  std::array<std::atomic<segment*>, global_message::max_segments> published_{};
  std::deque<segment> segments_;
  std::atomic<std::uint64_t> zeroed_{0}; // counts what was allocated for peers
  bool told_ = false;
  const std::unique_ptr<alock_locals> local_parties_;

  std::mutex sharing_mutex_; // before the other
  std::vector<std::weak_ptr<global_memory_impl>> sharing_;
};

} // namespace asio_rdma::detail
