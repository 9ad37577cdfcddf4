// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace asio_rdma {

/// Measured times from the start of a work request to its completion.
struct latency_statistics {
  /// The number of classes of the histogram; the last one has all times from about 9 minutes on.
  static constexpr std::size_t classes = 40;

  std::chrono::nanoseconds last{0}; ///< Of the work request that has completed last.
  std::chrono::nanoseconds sum{0};
  /// Class i has the times below 2^i nanoseconds that are not below 2^(i - 1).
  std::array<std::uint64_t, classes> counts{};

  std::uint64_t count() const noexcept {
    std::uint64_t all = 0;
    for (const std::uint64_t n : counts)
      all += n;
    return all;
  }
};

/// The latencies of a connection or a stream, if it measures them (`measure_latency`). A time
/// includes the wait for room in the device's queue. The peer's device has acknowledged a SEND when
/// it completes; on iWARP the network stack has taken its bytes.
struct link_latencies {
  latency_statistics sends;  ///< Of SENDs: each carries a frame of data, or of the library's own.
  latency_statistics remote; ///< Of RDMA READs, WRITEs and atomics.
};

/// Counters of a connection or a stream since it was opened, and some values of the moment. Each
/// counter is exact, but the counters are not read at the same instant.
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
  /// The SENDs, RDMA READs and WRITEs, atomics and binds that have been started and have not
  /// completed now.
  std::uint64_t requests_in_flight = 0;
  /// The frames that the peer could receive when a work request last completed or an operation was
  /// started. Data leaves three of them for the library's own frames.
  std::uint32_t credits = 0;
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
