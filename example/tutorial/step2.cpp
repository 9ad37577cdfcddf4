// SPDX-License-Identifier: BSL-1.0
// Step 2: the echo server and its client of step 1, by RDMA.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;

namespace {

asio::awaitable<void> server(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  // [accept]
  auto client = co_await acceptor.async_accept<asio_rdma::stream>(pool, deferred);
  // [accept]
  std::array<char, 1024> bytes;
  for (;;) {
    const auto [ec, n] =
        co_await client.async_read_some(asio::buffer(bytes), asio::as_tuple(deferred));
    if (ec)
      break; // `eof`: the client has closed its stream
    co_await asio::async_write(client, asio::buffer(bytes, n), deferred);
  }
}

asio::awaitable<void> client(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  // [connect]
  asio_rdma::stream server(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(server, where, deferred);
  // [connect]
  const std::string question = "hello";
  std::string answer(question.size(), ' ');
  co_await asio::async_write(server, asio::buffer(question), deferred);
  co_await asio::async_read(server, asio::buffer(answer), deferred);
  std::cout << "by RDMA: " << answer << std::endl;
}

} // namespace

int main() try {
  // [pool]
  const char* name = std::getenv("ASIO_RDMA_DEVICE"); // soft/run sets it
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  // [pool]
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
  std::cerr << "step2: " << e.what() << std::endl;
  return 2;
}
