// SPDX-License-Identifier: BSL-1.0
// Writes an HTTP server's answer to the standard output; by TCP or by RDMA.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <iostream>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable, asio::deferred, asio::ip::tcp;
using endpoints = tcp::resolver::results_type;

// [client]
awaitable<void> get(auto& server, std::string host, std::string target) {
  http::request<http::empty_body> request(http::verb::get, target, 11);
  request.set(http::field::host, host);
  request.keep_alive(false);
  co_await http::async_write(server, request, deferred);

  beast::flat_static_buffer<65536> buffer;
  http::response_parser<http::dynamic_body> parser;
  parser.body_limit(boost::none);
  while (!parser.is_done()) {
    co_await http::async_read_some(server, buffer, parser, deferred);
    std::cout << beast::make_printable(parser.get().body().data());
    parser.get().body().clear();
  }
  if (parser.get().result() != http::status::ok)
    throw std::runtime_error(std::string(parser.get().reason()));
}

awaitable<void> by_rdma(endpoints where, std::string host, std::string target) {
  const auto address = where.begin()->endpoint().address();
  const asio_rdma::protection_domain pd(asio_rdma::device::open_for(address));
  asio_rdma::stream server(co_await asio::this_coro::executor, asio_rdma::memory_pool(pd));
  asio_rdma::connector connector(co_await asio::this_coro::executor);
  co_await connector.async_connect(server, where, deferred);
  co_await get(server, host, target);
}
// [client]

awaitable<void> by_tcp(endpoints where, std::string host, std::string target) {
  tcp::socket server(co_await asio::this_coro::executor);
  co_await asio::async_connect(server, where, deferred);
  co_await get(server, host, target);
}

int main(int argc, char* argv[]) try {
  const std::string how = argc == 5 ? argv[1] : "";
  if (how != "tcp" && how != "rdma")
    throw std::invalid_argument("usage: http_get tcp|rdma HOST PORT /TARGET");
  asio::io_context io(1);
  const endpoints where = tcp::resolver(io).resolve(argv[2], argv[3]);
  co_spawn(io, (how == "tcp" ? by_tcp : by_rdma)(where, argv[2], argv[4]),
           [](std::exception_ptr e) {
             if (e)
               std::rethrow_exception(e);
           });
  io.run();
  if (!std::cout.flush())
    throw std::runtime_error("the standard output takes no more");
} catch (const std::exception& e) {
  std::cout.flush();
  std::cerr << "http_get: " << e.what() << std::endl;
  return 2;
}
