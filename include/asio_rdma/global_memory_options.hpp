// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>

#include <cstddef>

namespace asio_rdma {

/// Options of a `global_memory`.
struct global_memory_options {
  global_memory_options() {
    lanes.receives = 8;
    lanes.receive_size = 512;
    lanes.sends = 8;
  }

  /// The number of operations that are outstanding at a time with all nodes together, at least 1; a
  /// batch counts as one. More wait their turn, in order. Operations beyond what the device's
  /// caches hold slow the device down (Ren et al., "Scaling Up Memory Disaggregated Applications
  /// with SMART", ASPLOS 2024). The operations on a node that does not answer keep their places
  /// until the node is known to be dead. The accesses of locks are not counted, but keep their
  /// order with the operations that were started on their node before.
  std::size_t in_flight = 256;

  /// Options of the connection to each node. `lanes.queue_pair.send_depth` bounds the operations
  /// outstanding with a node; more wait their turn. The receives carry only joins, allocations and
  /// wake-ups of locks.
  connection_options lanes;

  /// The number of the node's objects that have lanes to share. 0: the object has lanes of its own
  /// and does not share them. Otherwise, once that many objects have lanes to share, further
  /// objects that set this option use those lanes. With very many nodes this saves lanes, but
  /// threads must take turns at them. See `basic_global_memory`.
  std::size_t shared_lanes = 0;
};

} // namespace asio_rdma
