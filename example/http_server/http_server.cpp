// SPDX-License-Identifier: BSL-1.0
// Serves the files of a folder by HTTP/1.1, over TCP and over RDMA: one coroutine for both.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <exception>
#include <filesystem>
#include <iostream>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable, asio::detached, asio::deferred, asio::ip::tcp;

// Refuses paths outside the folder, hidden files and folders.
std::optional<std::filesystem::path> file_of(const std::filesystem::path& root,
                                             std::string_view target) {
  if (!target.starts_with('/') || target.find("/.") != target.npos ||
      target.find("//") != target.npos)
    return std::nullopt;
  const std::filesystem::path path = root / target.substr(1);
  std::error_code ec;
  return std::filesystem::is_regular_file(path, ec) ? std::optional(path) : std::nullopt;
}

http::message_generator answer(const http::request<http::empty_body>& request,
                               const std::filesystem::path& root) {
  beast::error_code ec = http::error::bad_target;
  http::response<http::file_body> file(http::status::ok, request.version());
  if (const auto path = file_of(root, request.target()))
    file.body().open(path->c_str(), beast::file_mode::scan, ec);
  if (!ec && request.method() == http::verb::get) {
    file.keep_alive(request.keep_alive());
    file.prepare_payload();
    return file;
  }
  http::response<http::string_body> refusal(
      ec ? http::status::not_found : http::status::method_not_allowed, request.version());
  refusal.keep_alive(request.keep_alive());
  refusal.body() = "there is no such file\n";
  refusal.prepare_payload();
  return refusal;
}

struct server {
  // [server]
  awaitable<void> session(auto client) { // ends by an exception when the client is gone
    beast::flat_buffer buffer;
    for (bool more = true; more;) {
      http::request<http::empty_body> request;
      co_await http::async_read(client, buffer, request, deferred);
      more = request.keep_alive();
      co_await beast::async_write(client, answer(request, root), deferred);
    }
  }

  awaitable<void> serve_tcp() {
    for (;;)
      co_spawn(io, session(co_await by_tcp.async_accept(deferred)), detached);
  }

  awaitable<void> accept_rdma(asio_rdma::connection_request request) {
    asio_rdma::stream client(io, pool);
    co_await by_rdma.async_accept(std::move(request), client, deferred);
    co_await session(std::move(client));
  }

  awaitable<void> serve_rdma() {
    for (;;)
      co_spawn(io, accept_rdma(co_await by_rdma.async_wait_request(deferred)), detached);
  }
  // [server]

  asio::io_context& io;
  asio_rdma::memory_pool pool;
  tcp::acceptor by_tcp;
  asio_rdma::acceptor by_rdma;
  std::filesystem::path root;
};

int main(int argc, char* argv[]) try {
  if (argc != 4)
    throw std::invalid_argument(
        "usage: http_server ADDRESS PORT FOLDER (RDMA: PORT + 1; port 0: any)");
  const auto address = asio::ip::make_address(argv[1]);
  const auto port = static_cast<unsigned short>(std::stoi(argv[2]));
  // With soft and iWARP a port of RDMA is one of TCP, too.
  const auto rdma_port = static_cast<unsigned short>(port == 0 ? 0 : port + 1);
  const std::filesystem::path root = std::filesystem::canonical(argv[3]);

  asio::io_context io(1);
  const asio_rdma::protection_domain pd(asio_rdma::device::open_for(address));
  server s{io, asio_rdma::memory_pool(pd), tcp::acceptor(io, {address, port}),
           asio_rdma::acceptor(io, tcp::endpoint(address, rdma_port)), root};
  std::cout << "TCP port " << s.by_tcp.local_endpoint().port() << " RDMA port "
            << s.by_rdma.local_endpoint().port() << std::endl;
  const auto ended = [](const std::exception_ptr& why) { // only an error ends a session
    if (why)
      std::rethrow_exception(why);
  };
  co_spawn(io, s.serve_tcp(), ended);
  co_spawn(io, s.serve_rdma(), ended);
  io.run();
} catch (const std::exception& e) {
  std::cerr << "http_server: " << e.what() << std::endl;
  return 2;
}
