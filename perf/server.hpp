// SPDX-License-Identifier: BSL-1.0
// The side that measures for others.
#pragma once

#include "options.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace perf {

/// The version of the lines that both sides exchange. Sides of different versions refuse each
/// other.
inline constexpr const char* greeting = "asio_rdma-perf 1";

/// A listening socket. No RDMA device is opened.
class server {
public:
  /// Throws `system_error`.
  explicit server(const options& o);

  unsigned short port() const { return acceptor_.local_endpoint().port(); }
  /// Serves one client after the other, each in a process of its own: neither a failure nor memory
  /// of a client outlasts it. Returns after `options::clients`.
  void serve();

private:
  [[noreturn]] void be_child(const boost::asio::ip::tcp& protocol, int descriptor);

  const options& options_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
};

} // namespace perf
