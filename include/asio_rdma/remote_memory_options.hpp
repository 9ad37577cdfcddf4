// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// Limits of the memory of this side that the peer of a connection may request
/// (`async_request_memory`). Memory lent by `async_send_region` does not count.
struct remote_memory_options {
  access rights = access::remote_read | access::remote_write; ///< The rights that may be granted.
  /// Bytes granted at a time; with 0 every request is refused. Memory that the peer has handed back
  /// no longer counts, but is kept until `async_receive_region` receives it: at most one grant for
  /// each receive of the connection.
  std::uint64_t bytes = 0;
  std::uint32_t grants = 16; ///< Requests granted at a time, at most 65535.
  /// The lease of a request that specifies none, and the longest lease; a longer one is shortened
  /// to it. Not negative.
  std::chrono::microseconds default_lease = std::chrono::seconds(10);
  std::chrono::microseconds longest_lease = std::chrono::minutes(10);
  /// The time after the end of a lease during which the device still admits the peer. An operation
  /// that was started within the lease, and has not waited longer than this time, thus does not
  /// break the connection. A lease expires only while this side's context runs.
  std::chrono::microseconds grace = std::chrono::milliseconds(500);
};

} // namespace asio_rdma
