// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>
#include <infiniband/verbs.h>

#include <cstdint>

namespace asio_rdma {

/// An asynchronous event of a device (ibv_get_async_event(3)).
struct device_event {
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
  std::uint8_t port = 0;               ///< Of the port events; else 0.
  std::uint32_t queue_pair_number = 0; ///< Of the queue pair events; else 0.
};

} // namespace asio_rdma
