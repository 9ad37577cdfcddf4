// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>

#include <cstdint>

namespace asio_rdma {

/// Counters of a connection or a stream since it was opened. Each counter is exact, but the
/// counters are not read at the same instant.
///
/// The device retransmits, after the loss of a packet or because the peer had no receive (RNR),
/// below the verbs, which do not report it for a single queue pair. `device::counters` reports it
/// for the port.
struct link_statistics {
  std::uint64_t frames_sent = 0; ///< SENDs: data and the library's own.
  std::uint64_t frames_received = 0;
  std::uint64_t bytes_sent = 0; ///< Of messages or of the stream, without headers.
  std::uint64_t bytes_received = 0;
  /// How often data waited because the peer had no receive for it: the peer's program receives more
  /// slowly than this one sends, or has too few receives for the latency of the network.
  std::uint64_t credit_waits = 0;
  /// How often memory was registered for the peer's reads, or on iWARP for reads from the peer. On
  /// devices with memory windows a pool's memory needs no registration. A stream on iWARP registers
  /// nothing.
  std::uint64_t registrations = 0;
  /// Of the completion queue, which other objects may share: calls of ibv_poll_cq, wake-ups
  /// (`events`).
  completion_counters queue;
};

/// Messages count once they are complete.
struct connection_statistics : link_statistics {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t rendezvous_sent = 0;     ///< Sent messages that the peer has read.
  std::uint64_t rendezvous_received = 0; ///< Received messages that this side has read.
  std::uint64_t remote_operations = 0;   ///< Reads, writes and atomics on the peer's memory.
  std::uint64_t remote_bytes = 0;        ///< Bytes that these operations read and wrote.
};

/// Sent bytes count when their frame is sent, or when the peer has reported that it has read them;
/// received bytes count when the program has read them.
using stream_statistics = link_statistics;

} // namespace asio_rdma
