// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>
#include <asio_rdma/detail/core/set.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace asio_rdma {

/// Bytes that are carried by a connection request or its answer. InfiniBand and RoCE carry up to 56
/// with a request, 196 with an acceptance and 148 with a rejection; iWARP up to 251 each. Longer
/// data fail with `asio::error::message_size`. The request of a connection or of a stream carries
/// 24 bytes of the library's, so the program's data may have up to 32 bytes, and on iWARP up to
/// 227.
using private_data = std::vector<std::byte>;

/// Decides whether a request is accepted, by the connector's private data and its endpoint: see
/// `accept_options::admit`. The bytes exist during the call only.
using admit_function =
    std::function<bool(std::span<const std::byte>, const boost::asio::ip::tcp::endpoint&)>;

/// Options of an acceptor. They bound what connectors can make it spend before they are connected.
struct acceptor_options {
  acceptor_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// Requests that wait to be accepted; further ones are rejected.
  int backlog = boost::asio::socket_base::max_listen_connections;
  /// Handshakes under way: requests that have been answered, and whose connectors have not
  /// confirmed the answer. Each has a queue pair, and the first receives of a connection or a
  /// stream. Further requests wait. On iWARP the answer completes an accept; the handshake of a
  /// connection or a stream lasts until the connector's first frame.
  std::uint32_t handshakes = 64;
  /// A handshake without a confirmation gives way if a request waits that cannot be answered
  /// otherwise: after the `timeout` of its accept divided by the number of handshakes and waiting
  /// requests, but not before this time. As long as other connectors confirm, the time begins anew,
  /// until 64 that were answered later have confirmed. Its accept, or on iWARP its connection, ends
  /// with `timed_out`. Give connectors the round-trip time of the network. Until a second has
  /// passed without that, the newest request is answered first, of the source that has the fewest
  /// handshakes: the older requests are likely to be silent, too. A source is an IPv4 address, or
  /// an IPv6 network of 64 bits.
  std::chrono::milliseconds patience{400};

  /// Each sets the member of its name and returns the options:
  /// `acceptor_options().set_backlog(…)`. Calls can be chained.
  ///@{
  acceptor_options& set_backlog(int value) { return detail::set(*this, backlog, value); }
  acceptor_options& set_handshakes(std::uint32_t value) {
    return detail::set(*this, handshakes, value);
  }
  acceptor_options& set_patience(std::chrono::milliseconds value) {
    return detail::set(*this, patience, value);
  }
  ///@}
};

/// Options of an attempt to connect.
struct connect_options {
  connect_options() {} // as `acceptor_options`

  /// For the acceptor's program, with the request (`admit_function`, `connection_info::data`).
  private_data data;
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

  /// Each sets the member of its name and returns the options:
  /// `connect_options().set_data(…)`. Calls can be chained.
  ///@{
  connect_options& set_data(private_data value) {
    return detail::set(*this, data, std::move(value));
  }
  connect_options& set_timeout(std::chrono::milliseconds value) {
    return detail::set(*this, timeout, value);
  }
  connect_options& set_local(const std::optional<boost::asio::ip::tcp::endpoint>& value) {
    return detail::set(*this, local, value);
  }
  connect_options& set_type_of_service(std::optional<std::uint8_t> value) {
    return detail::set(*this, type_of_service, value);
  }
  ///@}
};

/// Options of an accept.
struct accept_options {
  accept_options() {} // as `acceptor_options`

  /// For the connector, with the acceptance. Of bare queue pairs only.
  private_data data;
  std::chrono::milliseconds timeout{10000}; ///< From the request to the connection.

  /// If it is set, each request of the accepting object's protocol is put to this function before
  /// it is answered. If the result is false, or the function throws any exception, the request is
  /// rejected: the connector gets `error::rejected`, `acceptor_statistics::refused_admission`
  /// counts the request, the log tells it, and the accept waits for the next request. Until the
  /// function has returned true, nothing is made for the request, posted, registered or granted:
  /// the object that accepts is as it was before.
  ///
  /// The function is called by the acceptor's executor, never by the initiating function, and by
  /// one acceptor not concurrently. The other requests of the acceptor wait for its return, so it
  /// must not block. It may close or cancel the acceptor. If the accept is cancelled during the
  /// call, or its object is closed, the request is put to the function of the next accept.
  ///
  /// The data of a connection or of a stream are exactly those of `connect_options::data`. Those of
  /// a bare queue pair may be padded with zeros, as in `connection_info`. They are not encrypted,
  /// and anyone who has seen them can send them again.
  admit_function admit;

  /// Each sets the member of its name and returns the options:
  /// `accept_options().set_data(…)`. Calls can be chained.
  ///@{
  accept_options& set_data(private_data value) {
    return detail::set(*this, data, std::move(value));
  }
  accept_options& set_timeout(std::chrono::milliseconds value) {
    return detail::set(*this, timeout, value);
  }
  accept_options& set_admit(admit_function value) {
    return detail::set(*this, admit, std::move(value));
  }
  ///@}
};

/// The endpoints and the private data of a new connection, or of a refusal.
struct connection_info {
  boost::asio::ip::tcp::endpoint local;
  boost::asio::ip::tcp::endpoint remote;
  /// The peer's. Those of a bare queue pair, and of a rejection, may be longer than the sent data,
  /// padded with zeros (rdma_get_cm_event(3)).
  private_data data;
};

} // namespace asio_rdma
