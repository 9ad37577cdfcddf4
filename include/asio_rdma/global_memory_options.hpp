// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>

#include <cstddef>

namespace asio_rdma {

/// What a `global_memory` is opened with.
struct global_memory_options {
  global_memory_options() {
    lanes.receives = 8;
    lanes.receive_size = 512;
    lanes.sends = 8;
  }

  /// Operations that are under way at a time, a batch being one, with all nodes together; more wait
  /// their turn, in order. More of them than the device's caches hold make it slower (Ren et al.,
  /// "Scaling Up Memory Disaggregated Applications with SMART", ASPLOS 2024). A node that
  /// does not answer keeps its places until it is known to be dead. What locks do is not counted,
  /// but keeps its order with what was started on their node before. At least 1.
  std::size_t in_flight = 256;

  /// Of the connection to each node. `lanes.queue_pair.send_depth` bounds the operations that are
  /// under way with a node; more wait their turn. The receives carry joins, allocations and who has
  /// a lock next only.
  connection_options lanes;

  /// 0: the object has a lane of its own to each node. Else it uses those of another object of its
  /// node that says so too, once there are so many of them: fewer lanes where there are very many
  /// nodes, which threads have to take turns at. See `basic_global_memory`.
  std::size_t shared_lanes = 0;
};

} // namespace asio_rdma
