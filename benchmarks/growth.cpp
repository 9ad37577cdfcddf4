// SPDX-License-Identifier: BSL-1.0
//
// Many streams between two processes: the time they take to connect, the registered memory of an
// idle stream, and whether all streams make progress, with shared receives and with receives of
// their own. Status 1: an idle stream costs more than its limit, or some streams are far slower
// than others.
#include <asio_rdma/asio_rdma.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <optional>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <system_error>
#include <vector>

namespace {

namespace asio = boost::asio;
using namespace asio_rdma;
using asio::use_awaitable, asio::ip::tcp;
using clock_type = std::chrono::steady_clock;

// Limits of registered memory for an idle stream.
constexpr double most_shared = 64 * 1024, most_own = 300 * 1024;
constexpr std::size_t connecting_at_a_time = 32;

struct plan {
  std::size_t streams = 1000;
  std::size_t exchanges = 20; // on the average
  std::size_t bytes = 2000;
  double within = 0;                  // seconds, to connect; 0: no limit
  bool own = false;                   // each stream has its own receives
  std::optional<unsigned short> port; // of the process that accepts
};

device open_device() {
  const char* const name = std::getenv("ASIO_RDMA_DEVICE");
  return name != nullptr ? device::open(name) : device::open_first();
}

/// The streams of one process, with their context, device and pool.
struct party {
  explicit party(const plan& p) : what(p) {
    if (p.own) {
      const stream_options o;
      // A pool that grows by itself has up to twice as much as it needs.
      pool.reserve(p.streams * (std::size_t(o.receives) * o.receive_size + 4096));
      return;
    }
    shared_receives_options o;
    o.receives = static_cast<std::uint32_t>(p.streams) * o.per_link;
    receives = shared_receives(io, pool, o);
  }

  asio_rdma::stream& add() {
    asio_rdma::stream& s = streams.emplace_back(io);
    what.own ? s.open(pool) : s.open(receives);
    return s;
  }

  double registered_by_each() const {
    return static_cast<double>(pool.statistics().bytes_registered) /
           static_cast<double>(what.streams);
  }
  bool tell_memory(const char* side) const {
    const double most = what.own ? most_own : most_shared;
    const bool good = registered_by_each() <= most;
    std::printf("  %s: %.1f KiB registered for each idle stream, of at most %.0f%s\n", side,
                registered_by_each() / 1024, most / 1024, good ? "" : ": TOO MUCH");
    return good;
  }

  template <class Coroutine>
  void start(Coroutine c) {
    asio::co_spawn(io, std::move(c), [](std::exception_ptr e) {
      if (e)
        std::rethrow_exception(e);
    });
  }

  plan what;
  protection_domain pd{open_device()};
  memory_pool pool{pd};
  asio::io_context io{1};
  shared_receives receives;
  std::deque<asio_rdma::stream> streams;
};

// --- The process that accepts ----------------------------------------------------------------

/// Sends all bytes back.
asio::awaitable<void> echo(asio_rdma::stream& s) {
  std::vector<char> buffer(4096);
  for (;;) {
    error_code ec;
    const std::size_t n =
        co_await s.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, ec));
    if (ec == asio::error::eof)
      co_return;
    boost::asio::detail::throw_error(ec, "read");
    co_await asio::async_write(s, asio::buffer(buffer, n), use_awaitable);
  }
}

asio::awaitable<void> accept_all(party& p, acceptor& listener, bool& good) {
  for (std::size_t i = 0; i < p.what.streams; ++i) {
    asio_rdma::stream& s = p.add();
    co_await listener.async_accept(s, use_awaitable);
    p.start(echo(s));
  }
  good = p.tell_memory("accepting");
}

pid_t start_other(const plan& p, unsigned short port) {
  std::vector<std::string> words{"bench_growth",
                                 "--port",
                                 std::to_string(port),
                                 "--streams",
                                 std::to_string(p.streams),
                                 "--exchanges",
                                 std::to_string(p.exchanges),
                                 "--bytes",
                                 std::to_string(p.bytes),
                                 "--within",
                                 std::to_string(p.within)};
  if (p.own)
    words.emplace_back("--own");
  std::vector<char*> arguments;
  for (std::string& w : words)
    arguments.push_back(w.data());
  arguments.push_back(nullptr);
  char program[] = "/proc/self/exe";
  pid_t pid = 0;
  if (const int e = ::posix_spawn(&pid, program, nullptr, nullptr, arguments.data(), environ))
    throw std::system_error(e, std::generic_category(), "posix_spawn");
  return pid;
}

bool accept(const plan& what) {
  party p(what);
  const char* const address = std::getenv("ASIO_RDMA_ADDRESS");
  const auto addresses = p.pd.get_device().addresses();
  if (address == nullptr && addresses.empty())
    throw std::runtime_error("the device has no address");
  acceptor listener(p.io,
                    {address != nullptr ? asio::ip::make_address(address) : addresses.front(), 0},
                    static_cast<int>(what.streams));
  std::printf("%zu streams between two processes, with %s\n", what.streams,
              what.own ? "receives of their own" : "shared receives");
  std::fflush(stdout);
  const pid_t other = start_other(what, listener.local_endpoint().port());
  bool good = false;
  p.start(accept_all(p, listener, good));
  p.io.run();
  int status = 0;
  ::waitpid(other, &status, 0);
  return good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// --- The process that connects ---------------------------------------------------------------

struct exchanges {
  explicit exchanges(const plan& p) : left(p.streams * p.exchanges), done(p.streams) {}

  std::size_t left;              // of all
  std::vector<std::size_t> done; // by each
  std::size_t over = 0;
};

asio::awaitable<void> connect_some(party& p, const tcp::endpoint& to, std::size_t& next,
                                   std::size_t& connected) {
  connector c(p.io);
  connect_options patient;
  patient.timeout = std::chrono::minutes(5);
  while (next < p.what.streams) {
    ++next;
    co_await c.async_connect(p.add(), to, patient, use_awaitable);
    ++connected;
  }
}

/// Each stream sends and reads the echo, until the streams together have done enough exchanges.
asio::awaitable<void> exchange(party& p, exchanges& all, std::size_t i) {
  asio_rdma::stream& s = p.streams[i];
  std::vector<char> out(p.what.bytes), in(p.what.bytes);
  while (all.left != 0) {
    --all.left;
    std::fill(out.begin(), out.end(), static_cast<char>(i + all.done[i]));
    co_await asio::async_write(s, asio::buffer(out), use_awaitable);
    co_await asio::async_read(s, asio::buffer(in), use_awaitable);
    if (in != out)
      throw std::runtime_error("other bytes came back");
    ++all.done[i];
  }
  ++all.over;
}

double seconds_of(clock_type::time_point from) {
  return std::chrono::duration<double>(clock_type::now() - from).count();
}

bool connect(const plan& what) {
  party p(what);
  const char* const address = std::getenv("ASIO_RDMA_ADDRESS");
  const tcp::endpoint to(address != nullptr ? asio::ip::make_address(address)
                                            : p.pd.get_device().addresses().front(),
                         *what.port);
  auto begun = clock_type::now();
  std::size_t next = 0, connected = 0;
  for (std::size_t i = 0; i < connecting_at_a_time; ++i)
    p.start(connect_some(p, to, next, connected));
  while (connected < what.streams && p.io.run_one() != 0)
    continue;
  const double connecting = seconds_of(begun);
  const bool in_time = what.within == 0 || connecting < what.within;
  std::printf("  connected in %.2f s%s\n", connecting, in_time ? "" : ": TOO LONG");
  const bool good = p.tell_memory("connecting") && in_time;

  exchanges all(what);
  p.io.restart();
  begun = clock_type::now();
  for (std::size_t i = 0; i < what.streams; ++i)
    p.start(exchange(p, all, i));
  while (all.over < what.streams && p.io.run_one() != 0)
    continue;
  const double seconds = seconds_of(begun);
  std::vector<std::size_t> order = all.done;
  std::sort(order.begin(), order.end());
  const std::size_t slowest = order.front(), median = order[order.size() / 2];
  const bool fair = 3 * slowest >= median && slowest != 0;
  const double moved = 2.0 * static_cast<double>(what.streams * what.exchanges * what.bytes);
  std::printf("  %zu exchanges of %zu bytes: %.1f MB/s; by a stream %zu at least, %zu in the "
              "median, %zu at most%s\n",
              what.streams * what.exchanges, what.bytes, moved / seconds / 1e6, slowest, median,
              order.back(), fair ? "" : ": UNFAIR");
  for (auto& s : p.streams)
    s.close();
  p.streams.clear();
  p.receives = {};
  p.io.restart();
  p.io.run();
  return good && fair;
}

} // namespace

int main(int argc, char* argv[]) try {
  plan p;
  CLI::App app("Measures many streams between two processes: time to connect, memory, fairness");
  app.add_option("--streams", p.streams, "number of streams")->check(CLI::Range(1, 100000));
  app.add_option("--exchanges", p.exchanges, "exchanges of each stream, on the average")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--bytes", p.bytes, "bytes of an exchange, each way")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--within", p.within, "seconds in which all streams must connect (0: no limit)");
  app.add_flag("--own", p.own,
               "each stream has receives of its own; without this option, first shared receives, "
               "then receives of their own for at most 200 streams");
  unsigned short port = 0;
  CLI::Option* const connects =
      app.add_option("--port", port, "port of the listening process (internal)");
  CLI11_PARSE(app, argc, argv);
  bool good = true;
  if (connects->count() != 0) {
    p.port = port;
    good = connect(p);
  } else {
    good = accept(p);
    if (!p.own) {
      p.own = true;
      p.streams = std::min<std::size_t>(p.streams, 200);
      good = accept(p) && good;
    }
  }
  std::fflush(stdout);
  return good ? 0 : 1;
} catch (const std::exception& e) {
  std::cerr << "bench_growth: " << e.what() << std::endl;
  return 2;
}
