// SPDX-License-Identifier: BSL-1.0
// echo_client ADDRESS PORT: sends some messages to echo_server, one at a time, and compares the
// replies.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::use_awaitable, asio::ip::tcp;

namespace {

asio::awaitable<void> run(asio_rdma::protection_domain pd, tcp::endpoint server) {
  const auto executor = co_await asio::this_coro::executor;
  constexpr std::size_t half = 4096;
  std::vector<std::byte> memory(2 * half);
  const asio_rdma::memory_region region(pd, memory.data(), memory.size());
  asio_rdma::queue_pair qp(executor, pd);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(qp, server, deferred);
  for (std::size_t size : {1u, 64u, 65u, 1000u, 4096u, 64u}) {
    std::memset(memory.data(), static_cast<int>(size % 251), size);
    const auto [reply, sent] =
        co_await (qp.async_receive(region.buffer(half, half), use_awaitable) &&
                  qp.async_send(region.buffer(0, size), use_awaitable));
    if (reply.bytes != size || std::memcmp(memory.data(), memory.data() + half, size) != 0)
      throw std::runtime_error("the reply differs from the request");
  }
}

} // namespace

int main(int argc, char* argv[]) try {
  if (argc != 3)
    throw std::runtime_error("usage: echo_client ADDRESS PORT");
  const tcp::endpoint server(asio::ip::make_address(argv[1]),
                             static_cast<std::uint16_t>(std::stoul(argv[2])));
  asio::io_context io(1);
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  auto done = co_spawn(io, run(asio_rdma::protection_domain(device), server), asio::use_future);
  io.run();
  done.get();
  std::cout << "every message came back" << std::endl;
} catch (const std::exception& e) {
  std::cerr << "echo_client: " << e.what() << std::endl;
  return 2;
}
