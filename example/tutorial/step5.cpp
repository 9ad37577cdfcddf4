// SPDX-License-Identifier: BSL-1.0
// Step 5: a program reads the memory of its peer. The peer's program takes no part in the reads.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <variant>

namespace asio = boost::asio;
using namespace std::chrono_literals;
using asio::deferred, asio::ip::tcp, asio_rdma::remote_region;

namespace {

constexpr std::size_t page_size = 9;

void set(const asio_rdma::registered_buffer& page, const char* text) {
  std::memcpy(page.data(), text, page_size);
}

// [owner]
asio::awaitable<void> owner(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  auto reader = co_await acceptor.async_accept<asio_rdma::connection>(pool, deferred);
  const asio_rdma::registered_buffer page = pool.allocate(page_size);
  set(page, "version 1");
  co_await reader.async_send_region(page, deferred); // lends the page, to be read
  co_await reader.async_receive(deferred);           // the reader has read it

  const asio_rdma::revocation end = co_await reader.async_revoke(page, 1s, deferred);
  std::cout << "owner: " << end.grants << " loan has ended" << std::endl;
  set(page, "version 2"); // no reader sees half of it
  co_await reader.async_send_region(page, deferred);
  co_await reader.async_receive(asio::as_tuple(deferred)); // `eof`: the reader closes
  co_await reader.async_close(deferred);
}
// [owner]

// [reader]
asio::awaitable<void> reader(tcp::endpoint where, asio_rdma::memory_pool pool) {
  const auto executor = co_await asio::this_coro::executor;
  asio_rdma::connection owner(executor, pool);
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(owner, where, deferred);

  std::string text(page_size, ' ');
  const auto first = std::get<remote_region>(co_await owner.async_receive_region(deferred));
  co_await owner.async_read(asio::buffer(text), first, deferred);
  std::cout << "reader: " << text << std::endl;
  co_await owner.async_send(asio::buffer("read"), deferred);

  const auto second = std::get<remote_region>(co_await owner.async_receive_region(deferred));
  const auto [ec, bytes] =
      co_await owner.async_read(asio::buffer(text), first, asio::as_tuple(deferred));
  if (ec == asio_rdma::error::lease_revoked)
    std::cout << "reader: the first loan has been revoked" << std::endl;
  co_await owner.async_read(asio::buffer(text), second, deferred);
  std::cout << "reader: " << text << std::endl;
  co_await owner.async_close(deferred);
}
// [reader]

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
  co_spawn(io, owner(acceptor, pool), rethrow);
  co_spawn(io, reader(where, pool), rethrow);
  io.run();
} catch (const std::exception& e) {
  std::cerr << "step5: " << e.what() << std::endl;
  return 2;
}
