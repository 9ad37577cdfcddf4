// SPDX-License-Identifier: BSL-1.0
// A server that SIGINT or SIGTERM ends in order: it accepts no more clients, closes the idle ones,
// and gives those in a transaction until a deadline. A second signal is the deadline. The exit
// status is 0 if all sessions have ended, 1 if some were cut off, 2 after an error.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <list>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable, asio::deferred, asio::use_awaitable, asio::ip::tcp;
using asio_rdma::connection, asio_rdma::memory_pool;

namespace {

enum status { all_ended = 0, some_cut_off = 1, failed = 2 };
const auto as_result = asio::as_tuple(deferred);

// [server]
class server {
public:
  server(asio::io_context& io, const tcp::endpoint& where) : io_(io), acceptor_(io, where) {}

  awaitable<void> accept(memory_pool pool) {
    for (;;) {
      auto [ec, client] = co_await acceptor_.async_accept<connection>(pool, as_result);
      if (ec || ending_)
        co_return;
      const auto s = sessions_.insert(sessions_.end(), session{std::move(client)});
      co_spawn(io_, serve(*s), [this, s](std::exception_ptr) {
        sessions_.erase(s);
        if (sessions_.empty())
          deadline_.cancel();
      });
    }
  }

  /// Returns after a signal, when the sessions have ended or the time of grace is over.
  awaitable<status> end_by_signal(std::chrono::seconds grace) {
    co_await signals_.async_wait(deferred);
    std::cout << "ending " << sessions_.size() << " sessions" << std::endl;
    ending_ = true;
    acceptor_.close();
    for (session& s : sessions_)
      if (s.idle)
        s.client.cancel(); // ends its receive
    deadline_.expires_after(grace);
    if (!sessions_.empty())
      co_await (deadline_.async_wait(asio::as_tuple(use_awaitable)) ||
                signals_.async_wait(use_awaitable));
    co_return sessions_.empty() ? all_ended : some_cut_off;
  }

  unsigned short port() const { return acceptor_.local_endpoint().port(); }

private:
  struct session {
    connection client;
    bool idle = true;
  };

  /// Adds up the numbers that the client sends, until it sends "end".
  awaitable<void> serve(session& s) {
    long sum = 0;
    while (!s.idle || !ending_) {
      const auto [ec, m] = co_await s.client.async_receive(as_result);
      if (ec)
        break; // the client has closed, is gone, or is idle at the end
      s.idle = m.text() == "end";
      if (!s.idle)
        sum += std::strtol(std::string(m.text()).c_str(), nullptr, 10);
      const std::string answer = (s.idle ? "sum " : "so far ") + std::to_string(sum);
      if (s.idle)
        sum = 0;
      co_await s.client.async_send(asio::buffer(answer), deferred);
    }
    co_await s.client.async_close(as_result); // what was sent has arrived
  }

  asio::io_context& io_;
  asio::signal_set signals_{io_, SIGINT, SIGTERM}; // from now on they end no process
  asio_rdma::acceptor acceptor_;
  std::list<session> sessions_;
  asio::steady_timer deadline_{io_};
  bool ending_ = false;
};
// [server]

} // namespace

int main(int argc, char* argv[]) try {
  if (argc != 4)
    throw std::invalid_argument("usage: graceful_shutdown ADDRESS PORT SECONDS (port 0: any)");
  const tcp::endpoint where(asio::ip::make_address(argv[1]),
                            static_cast<unsigned short>(std::stoul(argv[2])));
  const auto device = asio_rdma::device::open_for(where.address());
  const memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  server s(io, where);
  std::cout << "listening on port " << s.port() << std::endl;
  status result = failed;
  co_spawn(io, s.accept(pool), asio::detached);
  co_spawn(io, s.end_by_signal(std::chrono::seconds(std::stoul(argv[3]))),
           [&](std::exception_ptr e, status end) {
             if (e)
               std::rethrow_exception(e);
             result = end;
             if (end == some_cut_off)
               io.stop(); // otherwise `run` returns by itself
           });
  io.run();
  return result;
} catch (const std::exception& e) {
  std::cerr << "graceful_shutdown: " << e.what() << std::endl;
  return failed;
}
