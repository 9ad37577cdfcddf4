// SPDX-License-Identifier: BSL-1.0
// Servers of sockets and of streams, and their clients, which are in the same process here.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <array>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;

namespace {

// [echo]
asio::awaitable<void> echo(auto client) { // ends by an exception when the client is gone
  std::array<char, 4096> bytes;
  for (;;) {
    const std::size_t n = co_await client.async_read_some(asio::buffer(bytes), deferred);
    co_await asio::async_write(client, asio::buffer(bytes, n), deferred);
  }
}

asio::awaitable<void> by_tcp(tcp::acceptor& acceptor) {
  for (;;)
    co_spawn(acceptor.get_executor(), echo(co_await acceptor.async_accept(deferred)),
             asio::detached);
}

asio::awaitable<void> by_rdma(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  for (;;) {
    auto client = co_await acceptor.async_accept<asio_rdma::stream>(pool, deferred);
    co_spawn(acceptor.get_executor(), echo(std::move(client)), asio::detached);
  }
}
// [echo]

// [requests]
asio::awaitable<void> welcome(asio_rdma::acceptor& acceptor, asio_rdma::connection_request request,
                              asio_rdma::memory_pool pool) {
  asio_rdma::stream client(acceptor.get_executor(), pool);
  co_await acceptor.async_accept(std::move(request), client, deferred);
  co_await echo(std::move(client));
}

asio::awaitable<void> all_at_once(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  for (;;) {
    auto request = co_await acceptor.async_wait_request(deferred);
    co_spawn(acceptor.get_executor(), welcome(acceptor, std::move(request), pool), asio::detached);
  }
}
// [requests]

asio::awaitable<void> talk(auto& client, const std::string& words) {
  std::string answer(words.size(), ' ');
  co_await asio::async_write(client, asio::buffer(words), deferred);
  co_await asio::async_read(client, asio::buffer(answer), deferred);
  std::cout << answer << std::endl;
}

asio::awaitable<void> clients(tcp::endpoint sockets, tcp::endpoint streams, tcp::endpoint requests,
                              asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::socket socket(executor);
  co_await socket.async_connect(sockets, deferred);
  co_await talk(socket, "by TCP");
  asio_rdma::connector connector(executor);
  for (const tcp::endpoint& where : {streams, requests}) {
    asio_rdma::stream stream(executor, pool);
    co_await connector.async_connect(stream, where, deferred);
    co_await talk(stream, "by RDMA");
  }
}

tcp::endpoint reached(const auto& acceptor) {
  return {asio::ip::address_v4::loopback(), acceptor.local_endpoint().port()};
}

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  // [pool]
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  // [pool]
  asio::io_context io(1);
  const tcp::endpoint any(tcp::v4(), 0);
  tcp::acceptor sockets(io, any);
  asio_rdma::acceptor streams(io, any), requests(io, any);
  co_spawn(io, by_tcp(sockets), asio::detached);
  co_spawn(io, by_rdma(streams, pool), asio::detached);
  co_spawn(io, all_at_once(requests, pool), asio::detached);
  std::exception_ptr failure;
  co_spawn(io, clients(reached(sockets), reached(streams), reached(requests), pool),
           [&](std::exception_ptr e) {
             failure = std::move(e);
             io.stop(); // ends the servers
           });
  io.run();
  if (failure)
    std::rethrow_exception(failure);
} catch (const std::exception& e) {
  std::cerr << "from_sockets: " << e.what() << std::endl;
  return 2;
}
