// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/error.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace asio_rdma::detail {

class queue_pair_impl;

/// An object with a queue pair and a handshake of its own. The handshake travels as private data of
/// the connection request and of its answer. The acceptor and the connector connect the object like
/// a bare queue pair.
class connection_target {
public:
  virtual ~connection_target() = default;
  virtual const std::shared_ptr<queue_pair_impl>& target_queue_pair() const noexcept = 0;
  /// The handshake to be sent to the peer.
  virtual private_data hello() const = 0;
  /// Checks and takes the peer's handshake. Errors: `error::incompatible_peer`; the connection is
  /// not established.
  virtual error_code on_hello(std::span<const std::byte> data, bool accepting) = 0;
  /// Called when sends may be started; no mutex is locked.
  virtual void on_connected(const connection_info& info) = 0;
};

} // namespace asio_rdma::detail
