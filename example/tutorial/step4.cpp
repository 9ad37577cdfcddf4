// SPDX-License-Identifier: BSL-1.0
// Step 4: registered memory. The device moves a message from one block to the other, without a copy
// by either program.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;

namespace {

constexpr std::size_t block_size = 1 << 20;

// [sides]
asio::awaitable<void> server(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  auto client = co_await acceptor.async_accept<asio_rdma::connection>(pool, deferred);
  const asio_rdma::registered_buffer block = pool.allocate(block_size);
  const std::size_t bytes = co_await client.async_receive(block, deferred);
  std::cout << "server: " << bytes << " bytes are in the block" << std::endl;
  co_await client.async_send(block.slice(0, 5), deferred); // the first five of them
  co_await client.async_close(deferred);
}

asio::awaitable<void> client(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  asio_rdma::connection server(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(server, where, deferred);

  const asio_rdma::registered_buffer block = pool.allocate(block_size);
  std::memset(block.data(), 'x', block.size());
  server.async_send(block, [](boost::system::error_code ec, std::size_t) {
    if (ec)
      std::cerr << "client: " << ec.message() << std::endl;
  });
  if (!block.try_write_access())
    std::cout << "client: the block is in use by the device" << std::endl;

  const asio_rdma::message answer = co_await server.async_receive(deferred);
  std::cout << "client: the answer is " << answer.text() << std::endl;
  const auto access = co_await block.async_write_access(executor, deferred);
  std::memset(block.data(), 'y', block.size()); // `access` keeps operations away from the block
  std::cout << "client: the block is free again" << std::endl;
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
  std::cerr << "step4: " << e.what() << std::endl;
  return 2;
}
