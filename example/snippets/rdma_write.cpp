// SPDX-License-Identifier: BSL-1.0
// RDMA WRITE into the memory of a peer, which is in the same process here. The peer sends the
// address of its memory when it accepts. A message behind the write tells the peer that the bytes
// have arrived.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::use_awaitable, asio::ip::tcp;
using asio_rdma::access;

namespace {

// Both ends are on one machine here; between machines each field needs a defined byte order.
asio_rdma::private_data describe(const asio_rdma::remote_buffer& memory) {
  asio_rdma::private_data data(sizeof(memory));
  std::memcpy(data.data(), &memory, sizeof(memory));
  return data;
}

asio_rdma::remote_buffer described(const asio_rdma::private_data& data) {
  if (data.size() < sizeof(asio_rdma::remote_buffer))
    throw std::runtime_error("the peer did not say where its memory is");
  asio_rdma::remote_buffer memory;
  std::memcpy(&memory, data.data(), sizeof(memory));
  return memory;
}

asio::awaitable<std::size_t> write(const asio_rdma::protection_domain& pd,
                                   asio_rdma::queue_pair& qp, std::string text,
                                   const asio_rdma::connection_info& connection) {
  // [write]
  const asio_rdma::memory_region region(pd, text.data(), text.size());
  const asio_rdma::remote_buffer target = described(connection.data);
  co_return co_await qp.async_write(region.buffer(), target, deferred);
  // [write]
}

asio::awaitable<void> run(asio_rdma::protection_domain pd) {
  const auto executor = co_await asio::this_coro::executor;
  std::string memory(64, ' ');
  const asio_rdma::memory_region region(pd, memory.data(), memory.size(), access::remote_write);
  asio_rdma::queue_pair accepting(executor, pd), connecting(executor, pd);
  asio_rdma::acceptor acceptor(executor, tcp::endpoint(tcp::v4(), 0));
  asio_rdma::connector connector(executor);

  asio_rdma::accept_options answer;
  answer.data = describe(region.remote());
  const tcp::endpoint to(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  const auto [accepted, connected] =
      co_await (acceptor.async_accept(accepting, answer, use_awaitable) &&
                connector.async_connect(connecting, to, use_awaitable));

  const std::size_t bytes = co_await write(pd, connecting, "written by RDMA", connected);
  // On iWARP a write completes when its bytes have been sent. A message is delivered after the
  // placement of the bytes that were sent before it.
  std::string word("done"), heard(4, ' ');
  const asio_rdma::memory_region from(pd, word.data(), word.size());
  const asio_rdma::memory_region into(pd, heard.data(), heard.size());
  co_await (accepting.async_receive(into.buffer(), use_awaitable) &&
            connecting.async_send(from.buffer(), use_awaitable));
  std::cout << "the peer's memory: " << memory.substr(0, bytes) << std::endl;
}

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  asio::io_context io(1);
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  auto done = co_spawn(io, run(asio_rdma::protection_domain(device)), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "rdma_write: " << e.what() << std::endl;
  return 2;
}
