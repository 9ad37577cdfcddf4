// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace asio_rdma {

/// Bytes that are carried by a connection request or its answer. InfiniBand and RoCE carry up to 56
/// with a request, 196 with an acceptance and 148 with a rejection; iWARP up to 251 each. Longer
/// data fail with `asio::error::message_size`.
using private_data = std::vector<std::byte>;

/// Options of an attempt to connect.
struct connect_options {
  connect_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  private_data data; ///< For the acceptor, with the request.
  /// For each endpoint tried; then `timed_out`. A request that is rejected as stale (the peer still
  /// has the former connection of this queue pair's number) is repeated within this time.
  std::chrono::milliseconds timeout{10000};
  std::optional<boost::asio::ip::tcp::endpoint> local =
      std::nullopt; ///< The address to connect from.
  /// The type of service of the connection (RDMA_OPTION_ID_TOS of rdma_set_option(3)). On RoCE it
  /// is the traffic class of both queue pairs, and the network interface derives the service level
  /// from it. On InfiniBand the subnet manager chooses the service level by it, for IPv4 addresses;
  /// on iWARP its use depends on the driver. Empty: the administrator's setting on RoCE
  /// (`default_roce_tos` in /sys/kernel/config/rdma_cm), 0 otherwise.
  std::optional<std::uint8_t> type_of_service = std::nullopt;
};

/// Options of an accept.
struct accept_options {
  accept_options() {} // as `connect_options`

  private_data data;                        ///< For the connector, with the acceptance.
  std::chrono::milliseconds timeout{10000}; ///< From the request to the connection.
};

/// The endpoints and the private data of a new connection, or of a refusal.
struct connection_info {
  boost::asio::ip::tcp::endpoint local;
  boost::asio::ip::tcp::endpoint remote;
  private_data data; ///< The peer's. It may be longer than the sent data, padded with
                     ///< zeros (rdma_get_cm_event(3)).
};

} // namespace asio_rdma
