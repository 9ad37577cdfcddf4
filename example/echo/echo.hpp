// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace asio = boost::asio;
using asio_rdma::access;
using asio_rdma::memory_region;
using asio_rdma::protection_domain;
using asio_rdma::queue_pair;
using boost::system::error_code;

/// A connected queue pair with registered memory for the request and for the reply.
struct client {
  static constexpr std::size_t message_size = 64;

  client(asio::io_context& io, const protection_domain& pd)
      : memory(2 * message_size),
        region(pd, memory.data(), memory.size(), access::local_write),
        qp(io, pd) {}

  asio_rdma::const_buffer request() const { return region.buffer(0, message_size); }
  asio_rdma::mutable_buffer reply() const { return region.buffer(message_size, message_size); }
  /// Sets the number that the next request carries.
  void set(std::uint64_t number);
  /// Throws if the reply differs from the last request.
  void check(std::size_t bytes) const;

  std::vector<std::byte> memory;
  memory_region region;
  queue_pair qp; // destroyed before the memory that its device uses
};

/// Sends messages back until the peer disconnects. Two calls share a queue pair, so that one has
/// its receive posted while the other replies.
asio::awaitable<void> serve(queue_pair& qp, const protection_domain& pd);

// The client, once for each style of completion token. It sends a message and receives the echo,
// until `stop`. Each function returns the number of round trips and throws the error that ends
// them. The receive is posted before the request, as the reply may arrive at once.
using stop_flag = std::atomic<bool>;
using count = std::uint64_t;

// These two functions block, and need another thread that runs the queue pair's context.
count by_callback(client& c, const stop_flag& stop);
count by_future(client& c, const stop_flag& stop);

asio::awaitable<count> by_awaitable(client& c, const stop_flag& stop);
asio::awaitable<count> by_tuple(client& c, const stop_flag& stop);
asio::awaitable<count> by_deferred(client& c, const stop_flag& stop);
