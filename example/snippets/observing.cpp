// SPDX-License-Identifier: BSL-1.0
// A stream of this process to itself, whose log and statistics are printed.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <array>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <string>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::ip::tcp;

namespace {

// [log]
// Any thread may call the function, so it has a mutex. It calls nothing of the library.
void log_to_stderr() {
  asio_rdma::log_options options;
  options.least = asio_rdma::log_severity::info;
  options.long_wait = std::chrono::milliseconds(500); // of data for a slow peer
  asio_rdma::set_log(
      [](const asio_rdma::log_record& r) {
        static std::mutex one_at_a_time;
        const std::lock_guard lock(one_at_a_time);
        std::cerr << to_string(r.severity) << ' ' << to_string(r.event) << ": " << r.text << '\n';
      },
      options);
}
// [log]

// [scrape]
// Answers each request of a scrape, whatever its path.
asio::awaitable<void> serve_metrics(tcp::acceptor& acceptor, asio::execution_context& observed) {
  for (;;) {
    tcp::socket client = co_await acceptor.async_accept(deferred);
    std::string request;
    co_await asio::async_read_until(client, asio::dynamic_buffer(request), "\r\n\r\n", deferred);
    const std::string text = to_prometheus(asio_rdma::statistics(observed));
    const std::string answer =
        "HTTP/1.1 200 OK\r\nContent-Type: " + std::string(asio_rdma::prometheus_content_type) +
        "\r\nContent-Length: " + std::to_string(text.size()) + "\r\nConnection: close\r\n\r\n" +
        text;
    co_await asio::async_write(client, asio::buffer(answer), deferred);
  }
}
// [scrape]

asio::awaitable<void> echo_once(asio_rdma::acceptor& acceptor, asio_rdma::memory_pool pool) {
  auto client = co_await acceptor.async_accept<asio_rdma::stream>(pool, deferred);
  std::array<char, 5> bytes;
  co_await asio::async_read(client, asio::buffer(bytes), deferred);
  co_await asio::async_write(client, asio::buffer(bytes), deferred);
}

asio::awaitable<std::string> scrape(const tcp::endpoint& where) {
  tcp::socket monitor(co_await asio::this_coro::executor);
  co_await monitor.async_connect(where, deferred);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  co_await asio::async_write(monitor, asio::buffer(request), deferred);
  std::string answer;
  // The end of the file ends the answer.
  co_await asio::async_read(monitor, asio::dynamic_buffer(answer), asio::as_tuple(deferred));
  co_return answer;
}

asio::awaitable<void> talk(const tcp::endpoint& where, asio_rdma::memory_pool pool,
                           const tcp::endpoint& metrics) {
  const auto executor = co_await asio::this_coro::executor;
  // [latency]
  asio_rdma::stream server(executor, pool);
  server.measure_latency(); // costs two readings of the clock for each work request
  asio_rdma::connector connector(executor);
  co_await connector.async_connect(server, where, deferred);
  co_await asio::async_write(server, asio::buffer("hello", 5), deferred);
  std::array<char, 5> bytes;
  co_await asio::async_read(server, asio::buffer(bytes), deferred);
  const asio_rdma::latency_statistics sends = server.latencies().sends;
  std::cout << sends.count() << " SENDs, the last of which took " << sends.last.count() << " ns\n";
  // [latency]
  std::cout << co_await scrape(metrics);
}

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  log_to_stderr();
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  tcp::acceptor metrics(io, {asio::ip::address_v4::loopback(), 0});
  co_spawn(io, serve_metrics(metrics, io), asio::detached);
  co_spawn(io, echo_once(acceptor, pool) && talk(where, pool, metrics.local_endpoint()),
           [&](std::exception_ptr e) {
             metrics.close();
             if (e)
               std::rethrow_exception(e);
           });
  io.run();
  asio_rdma::set_log({});
} catch (const std::exception& e) {
  std::cerr << "observing: " << e.what() << std::endl;
  return 2;
}
