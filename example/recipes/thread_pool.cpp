// SPDX-License-Identifier: BSL-1.0
// A server on an asio::thread_pool. Each connection has a strand, so its coroutines need no lock,
// and a request that occupies a thread delays no other client. The clients are in the same process
// here.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <latch>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable, asio::deferred, asio::ip::tcp, asio_rdma::connection, asio_rdma::memory_pool;

namespace {

const auto as_result = asio::as_tuple(deferred);

// [server]
/// All sessions use it, on any thread.
struct service {
  /// May block.
  std::string answer(std::string_view request) {
    ++requests;
    if (request == "meet")
      both_here.arrive_and_wait(); // returns when another thread is here, too
    return "answer to " + std::string(request);
  }

  std::atomic<int> requests = 0;
  std::latch both_here{2};
};

awaitable<void> session(connection client, service& s) {
  for (;;) {
    const auto [ec, request] = co_await client.async_receive(as_result);
    if (ec == asio::error::eof)
      co_await client.async_close(as_result);
    if (ec)
      co_return;
    const std::string answer = s.answer(request.text());
    co_await client.async_send(asio::buffer(answer), deferred);
  }
}

awaitable<void> accept(std::shared_ptr<asio_rdma::acceptor> acceptor, memory_pool memory,
                       asio::thread_pool& threads, service& s) {
  for (;;) {
    const auto strand = asio::make_strand(threads);
    auto [ec, client] = co_await acceptor->async_accept<connection>(strand, memory, as_result);
    if (ec)
      co_return; // closed
    co_spawn(strand, session(std::move(client), s), asio::detached);
  }
}
// [server]

// Two coroutines of one strand share the connection and the number.
awaitable<void> ask(connection& server, int& unanswered, std::string first) {
  for (int i = 0; i != 100; ++i) {
    const std::string request = i == 0 ? first : std::to_string(i);
    ++unanswered;
    co_await server.async_send(asio::buffer(request), deferred);
  }
}
awaitable<void> check(connection& server, int& unanswered, std::string first) {
  for (int i = 0; i != 100; ++i) {
    const auto answer = co_await server.async_receive(deferred);
    --unanswered;
    if (answer.text() != "answer to " + (i == 0 ? first : std::to_string(i)))
      throw std::runtime_error("a wrong answer: " + std::string(answer.text()));
  }
}

awaitable<void> client(tcp::endpoint where, memory_pool memory, std::string first) {
  const auto strand = co_await asio::this_coro::executor;
  connection server(strand, memory);
  asio_rdma::connector connector(strand);
  co_await connector.async_connect(server, where, deferred);
  int unanswered = 0;
  co_await (ask(server, unanswered, first) && check(server, unanswered, first));
  if (unanswered != 0)
    throw std::runtime_error(std::to_string(unanswered) + " requests without an answer");
  co_await server.async_close(deferred);
}

} // namespace

int main() try {
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const memory_pool memory{asio_rdma::protection_domain(device)};
  service s;
  asio::thread_pool threads(4); // is destroyed first: its threads use the objects above
  const auto strand = asio::make_strand(threads);
  const auto acceptor = std::make_shared<asio_rdma::acceptor>(strand, tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), acceptor->local_endpoint().port());
  co_spawn(strand, accept(acceptor, memory, threads, s), asio::detached);
  std::vector<std::future<void>> clients;
  for (const char* first : {"meet", "meet", "first", "first"})
    clients.push_back(
        co_spawn(asio::make_strand(threads), client(where, memory, first), asio::use_future));
  for (auto& c : clients)
    c.get();
  post(strand, [acceptor] { acceptor->close(); });
  threads.join(); // the sessions have ended
  std::cout << s.requests << " requests" << std::endl;
  return s.requests == 400 ? 0 : 1;
} catch (const std::exception& e) {
  std::cerr << "thread_pool: " << e.what() << std::endl;
  return 2;
}
