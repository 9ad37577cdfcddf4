// SPDX-License-Identifier: BSL-1.0
// An owner changes memory that a peer reads. Both are in the same process here.
#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <variant>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using namespace std::chrono_literals;
using asio::deferred, asio::ip::tcp, asio_rdma::remote_region;

namespace {

constexpr std::size_t page_size = 8;

void set(const asio_rdma::registered_buffer& page, const char* text) {
  std::memcpy(page.data(), text, page_size);
}

// [sides]
asio::awaitable<void> owner(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  const auto executor = acceptor.get_executor();
  asio_rdma::connection reader(executor, pool);
  co_await acceptor.async_accept(reader, deferred);
  const auto page = pool.allocate(page_size);
  set(page, "old page");
  co_await reader.async_send_region(page, deferred);
  co_await reader.async_receive(deferred); // the reader has begun
  const auto end = co_await asio_rdma::async_revoke(executor, page, 1s, deferred);
  std::cout << end.grants << " loan has ended" << std::endl;
  set(page, "new page"); // no peer can see half of it
  co_await reader.async_send_region(page, deferred);
  co_await reader.async_close(deferred);
}

asio::awaitable<void> reader(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  asio_rdma::connection owner(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(owner, where, deferred);
  const auto old_page = std::get<remote_region>(co_await owner.async_receive_region(deferred));
  co_await owner.async_send(asio::buffer("begun"), deferred);
  std::string text(page_size, ' ');
  for (;;) {
    const auto [ec, bytes] =
        co_await owner.async_read(asio::buffer(text), old_page, asio::as_tuple(deferred));
    if (ec == asio_rdma::error::lease_revoked)
      break; // the connection continues
    if (ec)
      throw boost::system::system_error(ec);
  }
  std::cout << text << std::endl;
  const auto new_page = std::get<remote_region>(co_await owner.async_receive_region(deferred));
  co_await owner.async_read(asio::buffer(text), new_page, deferred);
  std::cout << text << std::endl;
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
  auto done = co_spawn(io, owner(acceptor, pool) && reader(where, pool), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "revoke: " << e.what() << std::endl;
  return 2;
}
