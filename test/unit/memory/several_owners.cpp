// SPDX-License-Identifier: BSL-1.0
// Must not compile: an operation would use memory without an owner.
#include <asio_rdma/connection.hpp>
#include <boost/asio/detached.hpp>

#include <array>

void send(asio_rdma::connection& c, const asio_rdma::memory_pool& pool) {
  c.async_send(std::array{pool.allocate(1000), pool.allocate(1000)}, boost::asio::detached);
}
