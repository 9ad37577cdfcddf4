// SPDX-License-Identifier: BSL-1.0
// Step 1: an echo server and its client, by TCP. Both are in one process, on one io_context.
#include <boost/asio.hpp>

#include <array>
#include <cstddef>
#include <exception>
#include <iostream>
#include <string>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;

namespace {

// [sides]
asio::awaitable<void> server(tcp::acceptor& acceptor) {
  tcp::socket client = co_await acceptor.async_accept(deferred);
  std::array<char, 1024> bytes;
  for (;;) {
    const auto [ec, n] =
        co_await client.async_read_some(asio::buffer(bytes), asio::as_tuple(deferred));
    if (ec)
      break; // `eof`: the client has closed its socket
    co_await asio::async_write(client, asio::buffer(bytes, n), deferred);
  }
}

asio::awaitable<void> client(tcp::endpoint where) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::socket server(executor);
  co_await server.async_connect(where, deferred);
  const std::string question = "hello";
  std::string answer(question.size(), ' ');
  co_await asio::async_write(server, asio::buffer(question), deferred);
  co_await asio::async_read(server, asio::buffer(answer), deferred);
  std::cout << "by TCP: " << answer << std::endl;
}
// [sides]

} // namespace

int main() try {
  asio::io_context io(1);
  tcp::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  const auto rethrow = [](std::exception_ptr e) {
    if (e)
      std::rethrow_exception(e); // leaves io.run()
  };
  co_spawn(io, server(acceptor), rethrow);
  co_spawn(io, client(where), rethrow);
  io.run();
} catch (const std::exception& e) {
  std::cerr << "step1: " << e.what() << std::endl;
  return 2;
}
