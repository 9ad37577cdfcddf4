// SPDX-License-Identifier: BSL-1.0
// A program's own test, which is linked with the software device: two ends of a stream send five
// bytes, wherever it runs.
#include <asio_rdma/asio_rdma.hpp>
#include <asio_rdma_soft.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <iostream>
#include <string>

namespace asio = boost::asio;

int main() {
  asio::io_context io(1);
  const asio_rdma::device soft = asio_rdma::device::open("soft0");
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(soft)};
  asio_rdma::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  asio_rdma::connector connector(io);
  asio_rdma::stream client(io);
  asio_rdma::stream server(io);
  client.open(pool);
  server.open(pool);
  std::string got(5, ' ');
  acceptor.async_accept(server, [&](asio_rdma::error_code ec, const auto&) {
    if (!ec)
      asio::async_read(server, asio::buffer(got), [](asio_rdma::error_code, std::size_t) {});
  });
  connector.async_connect(client, acceptor.local_endpoint(),
                          [&](asio_rdma::error_code ec, const auto&) {
                            if (!ec)
                              asio::async_write(client, asio::buffer("hello", 5),
                                                [](asio_rdma::error_code, std::size_t) {});
                          });
  io.run();
  soft_resources used{};
  soft_get_resources(&used);
  std::cout << got << " by " << soft.name() << ", " << used.queue_pairs << " queue pairs\n";
  return got == "hello" && used.queue_pairs == 2 ? 0 : 1;
}
