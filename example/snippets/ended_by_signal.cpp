// SPDX-License-Identifier: BSL-1.0
// An echo server that SIGINT or SIGTERM ends in order. Its client, which is in the same process
// here, sends that signal when it has its first answer.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <list>
#include <stdexcept>
#include <string>
#include <utility>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;
using asio_rdma::stream;

namespace {

const auto as_result = asio::as_tuple(deferred);

// [signal]
struct server {
  asio::io_context& io;
  asio_rdma::memory_pool pool;
  asio_rdma::acceptor acceptor;
  std::list<stream> clients = {};
};

asio::awaitable<void> serve(server& s, std::list<stream>::iterator client) {
  std::array<char, 4096> bytes;
  for (;;) {
    const auto [read_error, n] = co_await client->async_read_some(asio::buffer(bytes), as_result);
    if (read_error)
      break; // `eof` also after `shutdown` below
    const auto answer = asio::buffer(bytes, n);
    const auto [write_error, m] = co_await asio::async_write(*client, answer, as_result);
    if (write_error)
      break;
  }
  s.clients.erase(client); // closes the stream; the context still sends the written bytes
}

asio::awaitable<void> accept(server& s) {
  for (;;) {
    auto [ec, client] = co_await s.acceptor.async_accept<stream>(s.pool, as_result);
    if (ec)
      co_return; // the acceptor was closed
    s.clients.push_front(std::move(client));
    co_spawn(s.io, serve(s, s.clients.begin()), asio::detached);
  }
}

/// Ends the server in order: `run()` returns when the sessions have ended and the peers have the
/// written bytes. A peer that takes none is waited for no longer than `stream_options::linger`
/// says. The signals have their default action again when this function has returned, so a second
/// one ends the process.
asio::awaitable<void> end_by_signal(server& s) {
  asio::signal_set signals(s.io, SIGINT, SIGTERM);
  co_await signals.async_wait(deferred);
  s.acceptor.close();
  for (stream& client : s.clients)
    client.shutdown(stream::shutdown_receive); // its session answers what it has read, and ends
}
// [signal]

asio::awaitable<void> client(asio::io_context& io, asio_rdma::memory_pool pool, tcp::endpoint to) {
  stream there(io, pool);
  asio_rdma::connector connector(io);
  co_await connector.async_connect(there, to, deferred);
  const std::string words = "answered";
  co_await asio::async_write(there, asio::buffer(words), deferred);
  std::string answer(words.size(), ' ');
  co_await asio::async_read(there, asio::buffer(answer), deferred);
  std::cout << answer << std::endl;
  std::raise(SIGTERM);
  const auto [ec, n] = co_await there.async_read_some(asio::buffer(answer), as_result);
  if (ec != asio::error::eof)
    throw std::runtime_error("the server did not end in order");
}

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  server s{io, pool, {io, tcp::endpoint(tcp::v4(), 0)}};
  const tcp::endpoint here(asio::ip::address_v4::loopback(), s.acceptor.local_endpoint().port());
  co_spawn(io, accept(s), asio::detached);
  co_spawn(io, end_by_signal(s), asio::detached);
  auto done = co_spawn(io, client(io, pool, here), asio::use_future);
  io.run();
  done.get();
  std::cout << "ended in order" << std::endl;
} catch (const std::exception& e) {
  std::cerr << "ended_by_signal: " << e.what() << std::endl;
  return 2;
}
