// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connecting/log_rate.hpp"
#include "connecting/pending_handshakes.hpp"

#include <atomic>
#include <cstdint>

namespace asio_rdma::detail {

/// The counters of an acceptor, and its handshakes under way. A request may end after its acceptor,
/// so its connection shares them.
struct acceptor_tallies {
  using counter = std::atomic<std::uint64_t> acceptor_tallies::*;

  std::atomic<std::uint64_t> requests{0};
  /// The ends of requests. Each request has one of them, once it has ended.
  ///@{
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> refused_backlog{0};
  std::atomic<std::uint64_t> refused_incompatible{0};
  std::atomic<std::uint64_t> refused_admission{0};
  std::atomic<std::uint64_t> rejected{0};
  std::atomic<std::uint64_t> aborted{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> gave_way{0};
  ///@}
  pending_handshakes under_way;
  log_rate refusals; ///< Of the log's lines about requests that were not accepted.
};

} // namespace asio_rdma::detail
