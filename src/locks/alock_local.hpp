// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "global/global_node.hpp"
#include "locks/alock_layout.hpp"
#include "locks/alock_view.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace asio_rdma::detail {

/// The parties of a node's own process at locks of the node: the local cohorts. A party that leaves
/// a queue carries out its successor's next steps by the CPU. Thread-safe.
class alock_locals final : public alock_parties, public node_guest {
public:
  static alock_locals& of(global_node& node);
  explicit alock_locals(global_node& node);
  ~alock_locals() override;

  /// As `alock_view::start`. The lock's node is the node of this object.
  bool start(alock_operation& op, const std::shared_ptr<global_node>& keep);
  /// Cancels the operation of the view with that id.
  void cancel(const alock_view& view, std::uint64_t id);
  /// Cancels acquisitions as well.
  void abandon(const alock_view& view) override;

private:
  class party;
  class shard;

  static constexpr std::size_t shard_count = 16;
  shard& shard_of(remote_word lock) noexcept;

  std::unique_ptr<shard[]> shards_;
};

} // namespace asio_rdma::detail
