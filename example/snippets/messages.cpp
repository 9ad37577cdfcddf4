// SPDX-License-Identifier: BSL-1.0
// A client sends messages to a server, which is in the same process here, and gets them back.
#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::ip::tcp;

namespace {

// [sides]
asio::awaitable<void> server(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  asio_rdma::connection client(acceptor.get_executor(), pool);
  co_await acceptor.async_accept(client, deferred);
  for (int messages = 0; messages < 3; ++messages) {
    const asio_rdma::message m = co_await client.async_receive(deferred);
    co_await client.async_send(m.payload, deferred); // from where the device has put it
  }
  co_await client.async_close(deferred);
}

asio::awaitable<void> client(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  asio_rdma::connection server(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(server, where, deferred);
  for (const std::size_t bytes : {0u, 13u, 10'000'000u}) {
    const std::string text(bytes, 'x');
    co_await server.async_send(asio::buffer(text), deferred);
    const asio_rdma::message m = co_await server.async_receive(deferred);
    std::cout << m.size() << " bytes came back" << std::endl;
  }
  co_await server.async_close(deferred);
}
// [sides]

} // namespace

// [main]
int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  auto done = co_spawn(io, server(acceptor, pool) && client(where, pool), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "messages: " << e.what() << std::endl;
  return 2;
}
// [main]
