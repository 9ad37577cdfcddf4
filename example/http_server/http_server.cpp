// SPDX-License-Identifier: BSL-1.0
// Serves the files of a folder by HTTP/1.1, over TCP and over RDMA: one coroutine for both.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <filesystem>
#include <iostream>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable, asio::ip::tcp;

// Nothing above the folder, and no hidden file.
std::optional<std::filesystem::path> file_of(const std::filesystem::path& root,
                                             std::string_view target) {
  if (!target.starts_with('/') || target.find("/.") != target.npos)
    return std::nullopt;
  return root / target.substr(1);
}

template <class Stream>
asio::awaitable<void> session(Stream stream, std::filesystem::path root) {
  beast::flat_buffer buffer;
  for (bool more = true; more;) {
    http::request<http::empty_body> request;
    co_await http::async_read(stream, buffer, request, use_awaitable);
    more = request.keep_alive();
    http::response<http::file_body> file(http::status::ok, request.version());
    beast::error_code ec = http::error::bad_target;
    if (const auto path = file_of(root, request.target()))
      file.body().open(path->c_str(), beast::file_mode::scan, ec);
    if (!ec && request.method() == http::verb::get) {
      file.keep_alive(more);
      file.prepare_payload();
      co_await http::async_write(stream, file, use_awaitable);
    } else {
      http::response<http::string_body> refusal(
          ec ? http::status::not_found : http::status::method_not_allowed, request.version());
      refusal.keep_alive(more);
      refusal.body() = "there is no such file\n";
      refusal.prepare_payload();
      co_await http::async_write(stream, refusal, use_awaitable);
    }
  }
  stream.shutdown(asio::socket_base::shutdown_send);
} // left by an exception when the client has gone

asio::awaitable<void> serve_tcp(tcp::acceptor& acceptor, std::filesystem::path root) {
  for (;;) {
    tcp::socket socket = co_await acceptor.async_accept(use_awaitable);
    co_spawn(acceptor.get_executor(), session(std::move(socket), root), asio::detached);
  }
}

asio::awaitable<void> accept_rdma(asio_rdma::acceptor& acceptor,
                                  asio_rdma::connection_request request,
                                  asio_rdma::memory_pool pool, std::filesystem::path root) {
  asio_rdma::stream stream(acceptor.get_executor(), pool);
  co_await acceptor.async_accept(std::move(request), stream, use_awaitable);
  co_await session(std::move(stream), root);
}

asio::awaitable<void> serve_rdma(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool,
                                 std::filesystem::path root) {
  for (;;) {
    auto request = co_await acceptor.async_wait_request(use_awaitable);
    co_spawn(acceptor.get_executor(), accept_rdma(acceptor, std::move(request), pool, root),
             asio::detached);
  }
}

int main(int argc, char* argv[]) try {
  if (argc != 4)
    throw std::invalid_argument("usage: http_server ADDRESS PORT FOLDER (port 0: any)");
  const auto address = asio::ip::make_address(argv[1]);
  const auto port = static_cast<unsigned short>(std::stoi(argv[2]));
  const std::filesystem::path root = std::filesystem::canonical(argv[3]);

  asio::io_context io(1);
  const asio_rdma::protection_domain pd(asio_rdma::device::open_first());
  const asio_rdma::memory_pool pool(pd);
  tcp::acceptor by_tcp(io, {address, port});
  asio_rdma::acceptor by_rdma(io, {address, port});
  std::cout << "TCP port " << by_tcp.local_endpoint().port() << " RDMA port "
            << by_rdma.local_endpoint().port() << std::endl;
  co_spawn(io, serve_tcp(by_tcp, root), asio::detached);
  co_spawn(io, serve_rdma(by_rdma, pool, root), asio::detached);
  io.run();
} catch (const std::exception& e) {
  std::cerr << "http_server: " << e.what() << std::endl;
  return 2;
}
