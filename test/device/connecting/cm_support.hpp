// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>

#include "device/lifetime/life_resources.hpp"
#include "device/support/pair.hpp"

#include <optional>

#include <string>
#include <string_view>

namespace test {

using endpoint = asio::ip::tcp::endpoint;
using connection = outcome<connection_info>;

private_data bytes_of(std::string_view text);
/// The data as text, without the zeros by which the connection manager may have padded it.
std::string text_of(const private_data& data);

/// The largest private data, in bytes; more are refused.
struct data_limits {
  explicit data_limits(const device& d);
  std::size_t request, acceptance, rejection;
};

/// An acceptor on the device's address, a connector, and a queue pair for each.
struct meeting {
  explicit meeting(const queue_pair_options& of_a = {}, const queue_pair_options& of_b = {},
                   int backlog = 128);

  endpoint where() const { return listener->local_endpoint(); }
  void accept() { listener->async_accept(b, accepted.handler()); }
  void connect() { initiator->async_connect(a, where(), connected.handler()); }
  /// Connects and accepts, and runs until both operations are done. Throws if they failed.
  void meet();
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  /// Whether a message from the connector arrives at the acceptor.
  bool carries(std::string_view text);
  /// Whether a failed attempt had reached its peer.
  enum class peer { reached, not_reached };
  /// Checks that the queue pair of a failed attempt can be used for another one. On iWARP it cannot
  /// if the peer had been reached.
  void check_next_attempt(peer p = peer::not_reached);

  // Operations use these objects, so they are destroyed after the context.
  device dev = open_device();
  protection_domain pd{dev};
  memory ma{pd, 64 * 1024, most_rights(dev)}, mb{pd, 64 * 1024, most_rights(dev)};
  connection accepted, connected;
  asio::io_context io{1};
  std::optional<acceptor> listener{io};
  std::optional<connector> initiator{io};
  queue_pair a{io}, b{io};
};

/// Fails the test if it leaves anything in the kernel (`resource_check`).
class connections_check {
public:
  connections_check();

private:
  std::optional<resource_check> check_;
};

/// The number of threads of this process.
int count_threads();

} // namespace test
