// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/error.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace asio_rdma::detail {

class queue_pair_impl;

/// Something with a queue pair that speaks a protocol of its own with the peer's: what it says
/// travels as private data of the connection request and of its answer. The acceptor and the
/// connector connect it as they do a bare queue pair.
class connection_target {
public:
  virtual ~connection_target() = default;
  virtual const std::shared_ptr<queue_pair_impl>& target_queue_pair() const noexcept = 0;
  /// What the peer is told.
  virtual private_data hello() const = 0;
  /// What the peer has told. Errors: `error::incompatible_peer`, and then there is no connection.
  virtual error_code on_hello(std::span<const std::byte> data, bool accepting) = 0;
  /// Sends may be started. Nothing is locked.
  virtual void on_connected(const connection_info& info) = 0;
};

} // namespace asio_rdma::detail
