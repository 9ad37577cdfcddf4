// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/alock_layout.hpp>
#include <asio_rdma/detail/alock_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace asio_rdma::detail {

/// Those of a node's own process who take locks of the node: the local cohorts. Whoever leaves a
/// queue carries out, by the CPU, what its successor does next. Safe from any thread.
class alock_locals final : public alock_parties {
public:
  explicit alock_locals(global_node& node);
  ~alock_locals();

  /// As `alock_view::start`. The node is this one's.
  bool start(alock_operation& op, const std::shared_ptr<global_node>& keep);
  /// Gives up the operation of the view with that id.
  void cancel(const alock_view& view, std::uint64_t id);
  /// Gives up acquisitions as well.
  void abandon(const alock_view& view) override;

private:
  class party;
  class shard;

  static constexpr std::size_t shard_count = 16;
  shard& shard_of(remote_word lock) noexcept;

  std::unique_ptr<shard[]> shards_;
};

} // namespace asio_rdma::detail
