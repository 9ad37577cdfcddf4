// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue_options.hpp>

#include <cstdint>

namespace asio_rdma {

/// What a connection or a stream has done since it was opened. The figures are exact, each by
/// itself; what another thread counts meanwhile may be in one and not yet in another.
///
/// What a device repeats, because a packet was lost or the peer had no receive (RNR), happens below
/// the verbs, which tell it of no queue pair: `device::counters` gives what the port counts.
struct link_statistics {
  std::uint64_t frames_sent = 0; ///< SENDs: data and the library's own.
  std::uint64_t frames_received = 0;
  std::uint64_t bytes_sent = 0; ///< Of messages or of the stream, without headers.
  std::uint64_t bytes_received = 0;
  /// How often data had to wait because the peer had no receive left for it: its program takes
  /// more slowly than this one sends, or has too few receives for the distance.
  std::uint64_t credit_waits = 0;
  /// The completion queue's, which others may share: calls of ibv_poll_cq, wake-ups (`events`).
  completion_counters queue;
};

/// Messages count once they are complete.
struct connection_statistics : link_statistics {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t rendezvous_sent = 0;     ///< Of the messages: those that the peer has read.
  std::uint64_t rendezvous_received = 0; ///< Likewise.
  std::uint64_t remote_operations = 0;   ///< Reads, writes and atomics on the peer's memory.
  std::uint64_t remote_bytes = 0;        ///< That these read and wrote.
};

/// Bytes count when their frame is sent, or when the peer has told that it has read them, and when
/// the program has read them.
using stream_statistics = link_statistics;

} // namespace asio_rdma
