// SPDX-License-Identifier: BSL-1.0
// Writes what an HTTP server answers to the standard output; by TCP or by RDMA.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <iostream>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable, asio::ip::tcp;

template <class Stream>
asio::awaitable<void> get(Stream& stream, std::string host, std::string target) {
  http::request<http::empty_body> request(http::verb::get, target, 11);
  request.set(http::field::host, host);
  request.keep_alive(false);
  co_await http::async_write(stream, request, use_awaitable);

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  co_await http::async_read_header(stream, buffer, parser, use_awaitable);
  const auto status = parser.get().result();
  std::vector<char> piece(65536);
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    beast::error_code ec;
    co_await http::async_read(stream, buffer, parser, asio::redirect_error(use_awaitable, ec));
    if (ec && ec != http::error::need_buffer)
      throw beast::system_error(ec);
    std::cout.write(piece.data(),
                    static_cast<std::streamsize>(piece.size() - parser.get().body().size));
  }
  std::cout.flush();
  if (status != http::status::ok)
    throw std::runtime_error(std::string(http::obsolete_reason(status)));
}

asio::awaitable<void> by_tcp(std::string host, std::string port, std::string target) {
  tcp::resolver resolver(co_await asio::this_coro::executor);
  tcp::socket socket(co_await asio::this_coro::executor);
  co_await asio::async_connect(socket, co_await resolver.async_resolve(host, port, use_awaitable),
                               use_awaitable);
  co_await get(socket, host, target);
}

asio::awaitable<void> by_rdma(std::string host, std::string port, std::string target) {
  const asio_rdma::protection_domain pd(asio_rdma::device::open_first());
  tcp::resolver resolver(co_await asio::this_coro::executor);
  asio_rdma::connector connector(co_await asio::this_coro::executor);
  asio_rdma::stream stream(co_await asio::this_coro::executor, asio_rdma::memory_pool(pd));
  co_await connector.async_connect(
      stream, co_await resolver.async_resolve(host, port, use_awaitable), use_awaitable);
  co_await get(stream, host, target);
}

int main(int argc, char* argv[]) try {
  const std::string how = argc == 5 ? argv[1] : "";
  if (how != "tcp" && how != "rdma")
    throw std::invalid_argument("usage: http_get tcp|rdma HOST PORT /TARGET");
  asio::io_context io(1);
  co_spawn(io, (how == "tcp" ? by_tcp : by_rdma)(argv[2], argv[3], argv[4]),
           [](std::exception_ptr e) {
             if (e)
               std::rethrow_exception(e);
           });
  io.run();
} catch (const std::exception& e) {
  std::cerr << "http_get: " << e.what() << std::endl;
  return 2;
}
