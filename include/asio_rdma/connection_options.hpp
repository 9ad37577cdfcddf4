// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/queue_pair_options.hpp>
#include <asio_rdma/remote_memory_options.hpp>

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// What a connection is opened with. Each side chooses for itself; the other one adapts.
struct connection_options {
  connection_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// Receives posted ahead, at least 5, each of `receive_size` bytes, at least 56. They are what a
  /// peer may send before anything is taken here, and most of what an idle connection costs.
  std::uint32_t receives = 32;
  /// A message of up to this many bytes, less 16, is sent whole at once; a longer one is offered,
  /// and read by the receiver. It is the receiver's size that counts.
  std::uint32_t receive_size = 8192;
  std::uint32_t sends = 32; ///< Frames under way at a time; more wait their turn.

  /// Bytes; a longer one is refused, but one of up to 40 bytes never is. Receives are made no
  /// larger than it needs.
  std::uint64_t max_message = std::uint64_t(1) << 30;
  std::uint32_t offers = 16; ///< Long messages offered at a time, each with a key of its own.
  std::uint32_t pulls = 4;   ///< Long messages read at a time, at least one.

  /// At most so long after its last sign, and not before half of that, the peer is asked for one (a
  /// zero-length RDMA WRITE), so that the end of a peer that cannot tell of it is noticed: within
  /// this and the time of the queue pair's retries, on iWARP when TCP gives up (tcp(7),
  /// `tcp_retries2`). Only while the context runs. 0 for never.
  std::chrono::milliseconds keep_alive = std::chrono::seconds(10);

  remote_memory_options remote_memory; ///< What the peer may ask for.

  /// What the queue pair is opened with: a reliable one, whose receive queue has a depth of
  /// `receives`, and whose work requests have room for the buffers that a connection needs at
  /// least.
  queue_pair_options queue_pair;
};

} // namespace asio_rdma
