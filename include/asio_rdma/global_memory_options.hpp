// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>

namespace asio_rdma {

/// What a `global_memory` is opened with.
struct global_memory_options {
  global_memory_options() {
    lanes.receives = 8;
    lanes.receive_size = 512;
    lanes.sends = 8;
  }

  /// Of the connection to each node. `lanes.queue_pair.send_depth` bounds the operations that are
  /// under way with a node; more wait their turn. The receives carry joins and allocations only.
  connection_options lanes;
};

} // namespace asio_rdma
