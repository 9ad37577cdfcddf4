// SPDX-License-Identifier: BSL-1.0
// Step 3: messages instead of bytes. A message arrives whole, whatever its size.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;

namespace {

// [sides]
asio::awaitable<void> server(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  auto client = co_await acceptor.async_accept<asio_rdma::connection>(pool, deferred);
  for (;;) {
    const auto [ec, message] = co_await client.async_receive(asio::as_tuple(deferred));
    if (ec)
      break; // `eof`: the client has closed the connection
    std::cout << message.size() << " bytes";
    if (message.size() < 10)
      std::cout << ": '" << message.text() << "'";
    std::cout << std::endl;
  }
  co_await client.async_close(deferred);
}

asio::awaitable<void> client(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  asio_rdma::connection server(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(server, where, deferred);
  for (const std::string& text :
       {std::string("one"), std::string("two"), std::string(), std::string(10'000'000, 'x')})
    co_await server.async_send(asio::buffer(text), deferred);
  co_await server.async_close(deferred);
}
// [sides]

} // namespace

int main() try {
  const char* name = std::getenv("ASIO_RDMA_DEVICE"); // soft/run sets it
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  const auto rethrow = [](std::exception_ptr e) {
    if (e)
      std::rethrow_exception(e); // leaves io.run()
  };
  co_spawn(io, server(acceptor, pool), rethrow);
  co_spawn(io, client(where, pool), rethrow);
  io.run();
} catch (const std::exception& e) {
  std::cerr << "step3: " << e.what() << std::endl;
  return 2;
}
