// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

namespace asio_rdma {

/// Options of a shared receive queue. A lower limit of the device takes precedence.
struct shared_receive_queue_options {
  std::uint32_t depth = 1024; ///< Receives posted at a time, at least 1; more wait their turn.
  std::uint32_t max_sge = 4;  ///< Buffers in one receive.
};

} // namespace asio_rdma
