// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/stream.hpp>

#include <boost/asio/awaitable.hpp>

#include "device/connecting/cm_support.hpp"
#include "device/connection/connection_support.hpp"

#include <chrono>
#include <optional>

namespace test {

/// The bytes that a stream receives before its application reads, in frames of a sender that fills
/// them. Requires that the receives do not grow.
inline std::size_t receive_room(const stream_options& o) {
  return (o.receives - std::size_t(3)) * (o.receive_size - 16);
}

/// Receives of `size` bytes that do not grow.
inline stream_options fixed_receives(std::uint32_t size) {
  stream_options o;
  o.receive_size = size;
  o.max_receive_size = 0;
  return o;
}

/// Whether the streams of a device offer long writes of registered memory, which the peer then
/// READs. Otherwise the writes go in frames.
bool streams_offer(const device& d);

/// The bytes that a stream takes before its application reads of a write of registered memory that
/// the send buffer does not take. Requires that its receives do not grow, and that they are empty.
std::size_t taken_ahead(const asio_rdma::stream& s);

/// Two streams of one process, on one context.
struct stream_pair {
  explicit stream_pair(const stream_options& of_a = {}, const stream_options& of_b = {});

  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  /// Runs the context until a coroutine has ended. Throws the coroutine's exception, or if it takes
  /// longer than `longest`.
  void play(asio::awaitable<void> coroutine,
            std::chrono::seconds longest = std::chrono::seconds(30));

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool;
  asio::io_context io{1};
  acceptor listener{io};
  connector initiator{io};
  asio_rdma::stream a{io}, b{io}; ///< a has connected to b.
};

/// Two streams, each on its own context. a's context may end before b's.
struct two_contexts {
  explicit two_contexts(const stream_options& of_a = {}, const stream_options& of_b = {},
                        int threads_of_a = 1);

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  asio::io_context io_b{1};
  asio_rdma::stream b{io_b};
  std::optional<asio::io_context> io_a;
  std::optional<asio_rdma::stream> a{*io_a};
};

} // namespace test
