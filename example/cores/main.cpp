// SPDX-License-Identifier: BSL-1.0
// cores: a server with a context, a thread, a completion queue and a pool for each core. One
// acceptor hands the connections to the cores by turns; after that the cores share nothing. As many
// clients' cores send messages, which the server sends back, for a while. Prints the rate,
// connecting included, and how many connections and messages each core has served.
#include "../one_line.hpp"
#include "../refuse_nan.hpp"

#include <CLI/CLI.hpp>
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;
using asio_rdma::connection;
using boost::system::error_code, boost::system::system_error;

constexpr int failed = 2;

struct wishes {
  std::optional<std::string> device;
  unsigned cores = 2;
  unsigned connections = 8;
  unsigned window = 8; ///< Messages that a connection has under way.
  double seconds = 1;
};

int complain(const std::string& line) {
  std::cerr << "cores: " << one_line(line) << std::endl;
  return failed;
}

void rethrow(const std::exception_ptr& e) {
  if (e)
    std::rethrow_exception(e);
}

// [core]
/// All that the connections of one core use. Their handlers run on the core's thread.
struct core {
  explicit core(const asio_rdma::device& d, asio_rdma::completion_mode mode)
      : pool(asio_rdma::protection_domain(d)) {
    asio_rdma::completion_queue::set_default_options(io, {mode});
  }

  asio::io_context io{1}; // one thread: handlers do not pass through the context's queue
  asio_rdma::memory_pool pool;
  std::uint64_t served = 0, connections = 0;
  std::thread thread;
};

asio::awaitable<void> serve(core& here, connection client) {
  ++here.connections;
  for (;; ++here.served) {
    const auto [ec, m] = co_await client.async_receive(asio::as_tuple(deferred));
    if (ec == asio::error::eof)
      break; // the client has closed
    if (ec)
      throw system_error(ec);
    co_await client.async_send(m.payload, deferred);
  }
  co_await client.async_close(deferred); // the client's close waits for it
}

asio::awaitable<void> accept(asio_rdma::acceptor& acceptor, std::deque<core>& cores) {
  for (std::size_t n = 0;; ++n) {
    core& next = cores[n % cores.size()];
    // The connection belongs to the core's context: its operations complete on the core's thread.
    auto client = co_await acceptor.async_accept<connection>(next.io, next.pool, deferred);
    co_spawn(next.io, serve(next, std::move(client)), rethrow);
  }
}
// [core]

asio::awaitable<void> send(connection& server, const bool& stop) {
  const char bytes[64] = {};
  do {
    co_await server.async_send(asio::buffer(bytes), deferred);
    co_await server.async_receive(deferred);
  } while (!stop);
}

/// Connects, and keeps `window` messages under way.
asio::awaitable<void> be_client(core& here, tcp::endpoint to, unsigned window, const bool& stop) {
  connection server(here.io, here.pool);
  asio_rdma::connector connector(here.io);
  co_await connector.async_connect(server, to, deferred);
  unsigned running = window;
  asio::steady_timer ended(here.io, asio::steady_timer::time_point::max());
  for (unsigned i = 0; i < window; ++i)
    co_spawn(here.io, send(server, stop), [&](const std::exception_ptr& e) {
      rethrow(e);
      if (--running == 0)
        ended.cancel();
    });
  error_code ignored;
  co_await ended.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_await server.async_close(deferred);
}

void run(const wishes& w) {
  const asio_rdma::device d =
      w.device ? asio_rdma::device::open(*w.device) : asio_rdma::device::open_first();
  std::deque<core> servers, clients;
  for (unsigned i = 0; i < w.cores; ++i) {
    servers.emplace_back(d, asio_rdma::completion_mode::adaptive);
    clients.emplace_back(d, asio_rdma::completion_mode::adaptive);
  }
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(d.addresses().at(0), 0));
  const tcp::endpoint here = acceptor.local_endpoint();
  std::exception_ptr end_of_accepts;
  co_spawn(io, accept(acceptor, servers), [&](const std::exception_ptr& e) { end_of_accepts = e; });
  std::deque<bool> stop(w.cores);
  for (unsigned i = 0; i < w.connections; ++i) {
    core& c = clients[i % w.cores];
    co_spawn(c.io, be_client(c, here, w.window, stop[i % w.cores]), rethrow);
  }
  std::deque<asio::executor_work_guard<asio::io_context::executor_type>> work;
  for (std::deque<core>* const group : {&servers, &clients})
    for (core& c : *group) {
      if (group == &servers)
        work.push_back(asio::make_work_guard(c.io));
      c.thread = std::thread([&c] {
        try {
          c.io.run();
        } catch (const std::exception& e) {
          std::_Exit(complain(e.what())); // the other cores would wait for this one
        }
      });
    }
  std::thread accepting([&io] { io.run(); });
  std::this_thread::sleep_for(std::chrono::duration<double>(w.seconds));
  for (unsigned i = 0; i < w.cores; ++i)
    post(clients[i].io, [&flag = stop[i]] { flag = true; });
  for (core& c : clients)
    c.thread.join();
  post(io, [&] { acceptor.close(); });
  accepting.join();
  work.clear();
  for (core& c : servers)
    c.thread.join();
  try {
    rethrow(end_of_accepts);
  } catch (const system_error& e) {
    if (e.code() != asio::error::operation_aborted) // the acceptor was closed
      throw;
  }

  std::uint64_t all = 0;
  for (const core& c : servers) {
    if (w.connections >= w.cores && c.served == 0)
      throw std::runtime_error("a core has served no message");
    all += c.served;
  }
  std::printf("%.0f messages a second, there and back, on %u cores of a server\n",
              double(all) / w.seconds, w.cores);
  for (const core& c : servers)
    std::printf("a core: %llu connections, %llu messages\n",
                static_cast<unsigned long long>(c.connections),
                static_cast<unsigned long long>(c.served));
}

} // namespace

int main(int argc, char* argv[]) {
  wishes w;
  if (const char* name = std::getenv("ASIO_RDMA_DEVICE"))
    w.device = name;
  CLI::App app("Messages there and back between clients and a server, each with several cores");
  app.add_option("--device", w.device,
                 "RDMA device, such as rxe0 (default: $ASIO_RDMA_DEVICE, or the first)");
  app.add_option("--cores", w.cores, "Of the server, and as many of the clients (default 2)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--connections", w.connections, "All together (default 8)")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--window", w.window, "Messages that a connection has under way (default 8)")
      ->check(CLI::Range(1, 8));
  app.add_option("--seconds", w.seconds, "Duration (default 1)")
      ->check(CLI::Range(0.001, 86400.0))
      ->check(refuse_nan);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& e) {
    return complain(std::string(e.what()) + " (--help tells more)");
  }
  const std::string where = w.device ? "'" + *w.device + "': " : "";
  try {
    run(w);
  } catch (const system_error& e) {
    return complain(where + e.code().message());
  } catch (const std::exception& e) {
    return complain(where + e.what());
  }
}
