// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// Which memory of this side the peer of a connection may ask for (`async_request_memory`). What is
/// lent unasked (`async_send_region`) does not count.
struct remote_memory_options {
  access rights = access::remote_read | access::remote_write; ///< None but these are given.
  /// At a time; with 0 every request is refused. What the peer has handed back counts no more,
  /// though it is kept until `async_receive_region` gives it away: at most one for each receive.
  std::uint64_t bytes = 0;
  std::uint32_t grants = 16; ///< Requests granted at a time, at most 65535.
  /// For a request that names no lease, and the longest; a longer one is cut down to it. Zero and
  /// more.
  std::chrono::microseconds default_lease = std::chrono::seconds(10);
  std::chrono::microseconds longest_lease = std::chrono::minutes(10);
  /// How much longer than the lease the device lets the peer in, so that an operation that was
  /// started in time, and has not waited for longer than this behind others, does not break the
  /// connection. A lease ends by time only while this side's context runs.
  std::chrono::microseconds grace = std::chrono::milliseconds(500);
};

} // namespace asio_rdma
