// SPDX-License-Identifier: BSL-1.0
// Connecting the ends by rdma_cm.
#pragma once

#include "../control.hpp"
#include "../side.hpp"
#include "../sizes.hpp"

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <stdexcept>

namespace perf {

/// Listens for one connection, at a port that the system chooses.
class door {
public:
  explicit door(const side& s) : acceptor_(s.io, tcp::endpoint(s.address, 0), 1) {}

  tcp::endpoint where() const { return acceptor_.local_endpoint(); }
  template <asio_rdma::connectable Object>
  awaitable<void> accept(Object& object) {
    co_await acceptor_.async_accept(object, asio::use_awaitable);
    acceptor_.close();
  }
  void close() { acceptor_.close(); }

private:
  asio_rdma::acceptor acceptor_;
};

template <asio_rdma::connectable Object>
awaitable<void> connect_to(const side& s, Object& object, const tcp::endpoint& where) {
  asio_rdma::connector c(s.io);
  co_await c.async_connect(object, where, asio::use_awaitable);
}

/// Throws if an operation of a queue pair may not be as long as the request says.
inline void check_length(const side& s, const request& r) {
  if (r.size > s.dev.max_message_bytes())
    throw std::runtime_error("the device " + s.dev.name() + " has operations of up to " +
                             size_text(s.dev.max_message_bytes()) + " bytes");
}

} // namespace perf
