// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/queue_pair_options.hpp>

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// What a stream is opened with. Each side chooses for itself; the other one adapts.
struct stream_options {
  stream_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// Receives posted ahead, at least 5, each of `receive_size` bytes, at least 56. They are what a
  /// peer may send before anything is read here, as a socket's receive buffer is, and nearly all
  /// that an idle stream costs. Of longer writes 1 MiB is read ahead besides, or as many
  /// bytes as these have, to memory that is the pool's again when it has been taken.
  std::uint32_t receives = 16;
  std::uint32_t receive_size = 16384; ///< 16 of them are not payload.
  /// Frames under way at a time, and frames whose bytes have been copied: the send buffer. A frame
  /// has at most the peer's receive size. Writes of 32 KiB and more are copied to up to 4 blocks of
  /// 512 KiB besides.
  std::uint32_t sends = 16;

  /// How long the peer may take nothing of what was written, at most a day. Then the peer is asked
  /// whether its application has taken anything, and has as long again to answer: a program that
  /// uses blocking functions answers when it calls the next one. If the application has taken
  /// nothing, the connection of a stream that was closed is reset, and a context that runs, or is
  /// destroyed, waits no longer. 0: a close resets the connection, and nobody waits.
  /// `socket_base::linger` changes it.
  ///
  /// The connection of a write that was cancelled (or ended by a shutdown) is reset if the peer
  /// does not say in twice this time, at least two seconds, how much it has read.
  /// `socket_base::linger` does not change that.
  std::chrono::milliseconds linger{30000};

  /// At most so long after its last sign the peer is asked for one: see
  /// `connection_options::keep_alive`. 0 for never.
  std::chrono::milliseconds keep_alive = std::chrono::seconds(10);

  /// What the queue pair is opened with: a reliable one; as far as it concerns neither the depth of
  /// its queues nor its buffers.
  queue_pair_options queue_pair;
};

} // namespace asio_rdma
