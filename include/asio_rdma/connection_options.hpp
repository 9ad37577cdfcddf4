// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair_options.hpp>

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

/// Options of a connection. Each side chooses its own; the other side adapts.
struct connection_options {
  connection_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// The number of posted receives, at least 5, of at least 56 bytes. They bound how much the peer
  /// may send before this program receives, and are most of the cost of an idle connection.
  std::uint32_t receives = 32;
  /// A message of up to this many bytes, less 16, is sent whole at once; a longer message is
  /// offered, and read by the receiver. The receiver's value applies. When an offered message
  /// of up to `max_receive_size` bytes, less 16, is read into other than device-only memory, the
  /// receives grow to it, so that later ones are sent whole. They do not shrink. They do not grow
  /// if more than half of the pool's limit would then be in use, if `max_receive_size` is not
  /// larger than `receive_size`, or if the receives are shared.
  std::uint32_t receive_size = 8192;
  std::uint32_t max_receive_size = 131088;
  std::uint32_t sends = 32; ///< Frames outstanding at a time; more wait their turn.
  /// Small messages (up to 240 bytes) share frames of up to 1024 bytes, of which there is memory
  /// for `sends`. A small message that is sent while a frame of small messages is outstanding waits
  /// for the completion of that frame and for the handlers of its messages, so it needs the context
  /// to run. If false, each message has a frame of its own, which is posted at once.
  bool gather = true;

  /// The largest message in bytes. Longer messages are refused, but a message of up to 40 bytes
  /// never is. Receives are no larger than `max_message` requires.
  std::uint64_t max_message = std::uint64_t(1) << 30;
  std::uint32_t offers = 16; ///< Long messages offered at a time, each with a key of its own.
  std::uint32_t pulls = 4;   ///< Long messages read at a time, at least one.

  /// The peer is probed (by a zero-length RDMA WRITE) if nothing has arrived from it for a time
  /// between half of this interval and the interval; not while a request is outstanding, which the
  /// queue pair repeats by itself, except on iWARP. So the death of a peer is detected within this
  /// interval and the time of the queue pair's retries, on iWARP when TCP gives up (tcp(7),
  /// `tcp_retries2`). Only while the context runs. 0: never.
  std::chrono::milliseconds keep_alive = std::chrono::seconds(10);

  remote_memory_options remote_memory; ///< Limits of the peer's requests for memory.

  /// Options of the queue pair, whose type must be `IBV_QPT_RC`. `receives` sets the depth of its
  /// receive queue, and its work requests have room for at least the buffers that a connection
  /// needs.
  queue_pair_options queue_pair;
};

} // namespace asio_rdma
