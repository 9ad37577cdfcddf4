// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <iostream>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::use_awaitable, asio::ip::tcp;

// For clients that wait for each reply. The receive for the next message is posted before the reply
// is sent, so receive and reply use different halves of the memory.
asio::awaitable<void> session(asio_rdma::acceptor& acceptor, asio_rdma::connection_request request,
                              asio_rdma::protection_domain pd) {
  constexpr std::size_t half = 4096;
  std::vector<std::byte> memory(2 * half);
  const asio_rdma::memory_region region(pd, memory.data(), memory.size());
  asio_rdma::queue_pair qp(acceptor.get_executor(), pd);

  auto [message, connection] =
      co_await (qp.async_receive(region.buffer(0, half), use_awaitable) &&
                acceptor.async_accept(std::move(request), qp, use_awaitable));
  std::cout << connection.remote << " has connected" << std::endl;
  for (std::size_t here = 0, there = half;; std::swap(here, there)) {
    auto [next, sent] = co_await (qp.async_receive(region.buffer(there, half), use_awaitable) &&
                                  qp.async_send(region.buffer(here, message.bytes), use_awaitable));
    message = next;
  }
} // if the client is gone, an exception closes the queue pair first, then releases the memory

asio::awaitable<void> listen(asio_rdma::acceptor& acceptor, asio_rdma::protection_domain pd) {
  for (;;) {
    auto request = co_await acceptor.async_wait_request(deferred);
    co_spawn(acceptor.get_executor(), session(acceptor, std::move(request), pd), asio::detached);
  }
}

int main(int argc, char* argv[]) try {
  using asio_rdma::device;
  if (argc > 2)
    throw std::invalid_argument("takes the name of a device, or nothing");
  const asio_rdma::protection_domain pd(argc == 1 ? device::open_first() : device::open(argv[1]));
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 7471));
  std::cout << "listening on port " << acceptor.local_endpoint().port() << std::endl;
  co_spawn(io, listen(acceptor, pd), asio::detached);
  io.run();
} catch (const std::exception& e) {
  std::cerr << "echo_server: " << e.what() << std::endl;
  return 2;
}
