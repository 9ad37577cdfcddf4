// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>

namespace asio_rdma {

/// Counters of an acceptor since it was opened. A request that has ended is counted as exactly one
/// of `accepted` to `gave_way`. The other requests wait, or are being accepted, or the program has
/// taken them (`acceptor::async_wait_request`) and has not decided.
struct acceptor_statistics {
  std::uint64_t requests = 0;        ///< Requests of connectors that have arrived.
  std::uint64_t accepted = 0;        ///< Connections that were established.
  std::uint64_t refused_backlog = 0; ///< Refused because `backlog` requests were waiting.
  /// Refused because the connector uses another protocol or version than the accepting object.
  /// The connector gets `error::incompatible_peer`.
  std::uint64_t refused_incompatible = 0;
  asio::ip::tcp::endpoint last_incompatible; ///< The connector of the last one of these.
  /// `error::incompatible_peer`. Its message has the versions of both sides, or the kinds of both
  /// objects.
  error_code last_reason;
  /// Refused because `accept_options::admit` has returned false or thrown an exception.
  std::uint64_t refused_admission = 0;
  /// Rejected by the program: by `connection_request::reject`, or because a request or the acceptor
  /// was destroyed or closed.
  std::uint64_t rejected = 0;
  std::uint64_t aborted = 0; ///< The connector has given up, or did not answer in time.
  std::uint64_t failed = 0; ///< Accepting failed for another reason, such as `error::wrong_device`.
  /// Ended because the connector was silent while other requests waited
  /// (`acceptor_options::patience`); not those that were accepted before, on iWARP.
  std::uint64_t gave_way = 0;
  std::size_t handshakes = 0;      ///< Handshakes under way now.
  std::size_t waiting = 0;         ///< Requests that no operation has taken now.
  std::size_t pending_accepts = 0; ///< Operations that wait for a request now.
};

} // namespace asio_rdma
