// SPDX-License-Identifier: BSL-1.0
// line_client ADDRESS PORT: sends each line of the standard input as a message, and prints the
// answers. Ends with the input, or when the server closes; with status 2 if the connection fails.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <variant>

#include <unistd.h>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable, asio::deferred, asio::ip::tcp;
using asio_rdma::connection;

namespace {

const auto as_result = asio::as_tuple(deferred);

awaitable<boost::system::error_code> print(connection& server) {
  for (;;) {
    const auto [ec, m] = co_await server.async_receive(as_result);
    if (ec)
      co_return ec;
    std::cout << m.text() << std::endl;
  }
}

awaitable<void> send_input(connection& server) {
  asio::posix::stream_descriptor input(server.get_executor(), ::dup(STDIN_FILENO));
  std::string text;
  for (auto lines = asio::dynamic_buffer(text);;) {
    const auto [ec, n] = co_await asio::async_read_until(input, lines, '\n', as_result);
    if (ec)
      co_return;
    co_await server.async_send(asio::buffer(text, n - 1), deferred);
    text.erase(0, n);
  }
}

awaitable<void> run(tcp::endpoint where) {
  const auto executor = co_await asio::this_coro::executor;
  const asio_rdma::protection_domain pd(asio_rdma::device::open_first());
  connection server(executor, asio_rdma::memory_pool(pd));
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(server, where, deferred);
  std::cout << "connected" << std::endl;
  const auto end = co_await (print(server) || send_input(server));
  if (end.index() == 0 && std::get<0>(end) != asio::error::eof)
    throw boost::system::system_error(std::get<0>(end));
  co_await server.async_close(deferred);
}

} // namespace

int main(int argc, char* argv[]) try {
  if (argc != 3)
    throw std::invalid_argument("usage: line_client ADDRESS PORT");
  const tcp::endpoint where(asio::ip::make_address(argv[1]),
                            static_cast<unsigned short>(std::stoul(argv[2])));
  asio::io_context io(1);
  auto done = co_spawn(io, run(where), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "line_client: " << e.what() << std::endl;
  return 2;
}
