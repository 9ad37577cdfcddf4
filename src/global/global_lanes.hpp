// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/global/global_face.hpp>
#include <asio_rdma/detail/global/in_flight.hpp>
#include <asio_rdma/remote_ptr.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

namespace asio_rdma::detail {

/// The lane to a node, as the node's introduction described it, or the record of a node that has
/// left. Never changes while it is published.
struct global_lane {
  std::shared_ptr<lane_link> link; ///< Null once the node has left.
  std::uint64_t incarnation = 0;
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  std::vector<remote_buffer> segments; ///< None once the node has left.
  error_code reason = {}; ///< The error of operations on the memory of a node that has left.
};

/// The published lanes of one view, at most one for each node. They are found without a lock. A
/// lane that was replaced is destroyed when no thread looks for a lane.
class global_lanes {
public:
  /// A look for lanes. The lanes that it finds exist as long as the look.
  class look {
  public:
    explicit look(const global_lanes& lanes) noexcept : lanes_(lanes) { ++lanes_.looks_; }
    look(const look&) = delete;
    ~look() { --lanes_.looks_; }

    /// Null for a node that was never joined.
    const global_lane* operator[](node_id node) const noexcept {
      return node <= max_node ? lanes_.of_[node].load() : nullptr;
    }

  private:
    const global_lanes& lanes_;
  };

  /// The following functions are called by one thread at a time.
  ///@{

  /// As in a look.
  const global_lane* operator[](node_id node) const noexcept {
    return node <= max_node ? of_[node].load() : nullptr;
  }
  /// Publishes the first lane of the list in place of the node's former one.
  void publish(node_id node, std::list<global_lane>& made) noexcept;
  /// Takes the lanes that were replaced and that no look uses, to be destroyed without a lock.
  std::list<global_lane> take_unused() noexcept;
  ///@}

private:
  // Sequentially consistent with `of_`: a look that begins after `take_unused` has found none finds
  // the new lane.
  mutable std::atomic<std::uint32_t> looks_{0};
  std::array<std::atomic<const global_lane*>, max_node + 1> of_{};
  std::list<global_lane> published_, replaced_;
};

} // namespace asio_rdma::detail
