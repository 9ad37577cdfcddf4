// SPDX-License-Identifier: BSL-1.0
// A client uses memory of another machine, which is here the same process.
#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string_view>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::ip::tcp;

namespace {

// [sides]
asio::awaitable<void> owner(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  asio_rdma::connection_options options;
  options.remote_memory.bytes = 1 << 20; // which the client may ask for
  asio_rdma::connection client(acceptor.get_executor(), pool, options);
  co_await acceptor.async_accept(client, deferred);
  const auto region = co_await client.async_receive_region(deferred);
  const auto& memory = std::get<asio_rdma::registered_buffer>(region); // its own, handed back
  const std::string_view text(static_cast<const char*>(memory.data()), memory.size());
  std::cout << "the second half: " << text.substr(text.size() / 2) << std::endl;
  co_await client.async_close(deferred);
}

asio::awaitable<void> client(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  asio_rdma::connection owner(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(owner, where, deferred);
  const auto memory = co_await owner.async_request_memory(30, deferred);
  co_await owner.async_write(asio::buffer("written by RDMA", 15), memory.slice(15), deferred);
  co_await owner.async_send_region(memory, deferred);
  co_await owner.async_close(deferred);
}
// [sides]

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  auto done = co_spawn(io, owner(acceptor, pool) && client(where, pool), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "remote_memory: " << e.what() << std::endl;
  return 2;
}
