// SPDX-License-Identifier: BSL-1.0
//
// Streams that connect and close one after another, both ends in one context and one thread: the
// times, and how long one handler holds the thread. With --shared, links on shared receives that
// end together. With --domains, the cost of a protection domain for each accepted link. On soft
// with ASIO_RDMA_SOFT=mlx5 creating and destroying take as long as on an adapter, and so does its
// report that a queue pair uses no shared receive any more.
#include <asio_rdma/asio_rdma.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

namespace asio = boost::asio;
using namespace asio_rdma;
using clock_type = std::chrono::steady_clock;
using microseconds = std::chrono::duration<double, std::micro>;

struct times {
  std::vector<double> microseconds;
  double median() {
    const auto middle = microseconds.begin() + std::ptrdiff_t(microseconds.size() / 2);
    std::nth_element(microseconds.begin(), middle, microseconds.end());
    return *middle;
  }
  double longest() const { return *std::max_element(microseconds.begin(), microseconds.end()); }
};

/// Runs the context until the condition is true. Returns the time of the longest handler.
double run(asio::io_context& io, const std::function<bool()>& done) {
  double longest = 0;
  io.restart();
  while (!done()) {
    const auto began = clock_type::now();
    if (io.poll_one() == 0)
      std::this_thread::yield();
    else
      longest = std::max(longest, microseconds(clock_type::now() - began).count());
  }
  return longest;
}

void check(const error_code& ec, const char* what) {
  if (ec)
    throw std::system_error(ec, what);
}

device open_device() {
  const char* const name = std::getenv("ASIO_RDMA_DEVICE");
  return name != nullptr ? device::open(name) : device::open_first();
}

asio::ip::tcp::endpoint any_port(const device& d) {
  if (const char* const address = std::getenv("ASIO_RDMA_ADDRESS"))
    return {asio::ip::make_address(address), 0};
  const auto addresses = d.addresses();
  if (addresses.empty())
    throw std::runtime_error("the device has no address");
  return {addresses.front(), 0};
}

void measure(std::size_t count) {
  asio::io_context io(1);
  const protection_domain pd(open_device());
  memory_pool pool(pd);
  acceptor listener(io, any_port(pd.get_device()));
  connector initiator(io);
  times open, open_handler, close, close_handler;
  for (std::size_t i = 0; i < count; ++i) {
    asio_rdma::stream accepted(io), connected(io);
    unsigned ends = 0;
    const auto end = [&](error_code ec, const auto&) {
      check(ec, "connecting");
      ++ends;
    };
    const auto began = clock_type::now();
    accepted.open(pool);
    connected.open(pool);
    listener.async_accept(accepted, end);
    initiator.async_connect(connected, listener.local_endpoint(), end);
    open_handler.microseconds.push_back(run(io, [&] { return ends == 2; }));
    open.microseconds.push_back(microseconds(clock_type::now() - began).count());
    for (asio_rdma::stream* const s : {&connected, &accepted}) {
      const auto closing = clock_type::now();
      error_code ec;
      s->close(ec);
      close.microseconds.push_back(microseconds(clock_type::now() - closing).count());
      check(ec, "close");
    }
    close_handler.microseconds.push_back(run(io, [&] { return io.stopped(); }));
  }
  std::printf("%zu streams on %s, one after another, us\n"
              "  connected at both ends        median %8.0f   longest %8.0f\n"
              "  longest handler of each       median %8.0f   longest %8.0f\n"
              "  a call of stream::close       median %8.0f   longest %8.0f\n"
              "  longest handler after it      median %8.0f   longest %8.0f\n",
              count, pd.get_device().name().c_str(), open.median(), open.longest(),
              open_handler.median(), open_handler.longest(), close.median(), close.longest(),
              close_handler.median(), close_handler.longest());
}

/// Connected links that share receives, both ends in one context. The device is opened for them, so
/// nothing is known of its reports.
template <class Link, class Options>
struct crowd {
  explicit crowd(std::size_t number)
      : pd(open_device()),
        io(std::make_unique<asio::io_context>(1)),
        receives(std::in_place, *io, memory_pool(pd), options(number)) {
    acceptor listener(*io, any_port(pd.get_device()));
    connector initiator(*io);
    Options small;
    small.queue_pair.send_depth = 32; // so that the completion queue has room for all
    unsigned connected = 0;
    const auto end = [&](error_code ec, const auto&) {
      check(ec, "connecting");
      ++connected;
    };
    while (links.size() != 2 * number) {
      Link& accepted = links.emplace_back(*io);
      Link& connecting = links.emplace_back(*io);
      accepted.open(*receives, small);
      connecting.open(*receives, small);
      listener.async_accept(accepted, end);
      initiator.async_connect(connecting, listener.local_endpoint(), end);
      run(*io, [&] { return connected == links.size(); });
    }
  }
  static shared_receives_options options(std::size_t number) {
    shared_receives_options o;
    o.receives = std::max(o.receives, 2 * o.per_link * std::uint32_t(number));
    return o;
  }

  protection_domain pd;
  std::unique_ptr<asio::io_context> io;
  std::optional<shared_receives> receives;
  std::deque<Link> links;
};

/// The ends of links on shared receives, all at one moment.
void measure_shared(std::size_t number, std::size_t rounds) {
  times closed, together, handler, context;
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto since = [](clock_type::time_point began) {
      return microseconds(clock_type::now() - began).count();
    };
    {
      crowd<connection, connection_options> c(number);
      const auto began = clock_type::now();
      for (connection& link : c.links)
        link.close();
      closed.microseconds.push_back(since(began));
    }
    {
      crowd<connection, connection_options> c(number);
      const auto began = clock_type::now();
      for (connection& link : c.links)
        link.async_close([](error_code ec) { check(ec, "async_close"); });
      handler.microseconds.push_back(run(*c.io, [&] { return c.io->stopped(); }));
      together.microseconds.push_back(since(began));
    }
    {
      crowd<asio_rdma::stream, stream_options> c(number);
      c.links.clear();
      c.receives.reset();
      const auto began = clock_type::now();
      c.io.reset();
      context.microseconds.push_back(since(began));
    }
  }
  std::printf("both ends of %zu links on shared receives, us\n"
              "  connection::close, all        median %8.0f   longest %8.0f\n"
              "  connection::async_close, all  median %8.0f   longest %8.0f\n"
              "  longest handler of these      median %8.0f   longest %8.0f\n"
              "  closed streams, ~io_context   median %8.0f   longest %8.0f\n",
              number, closed.median(), closed.longest(), together.median(), together.longest(),
              handler.median(), handler.longest(), context.median(), context.longest());
}

/// The costs of links, whose accepting ends may have protection domains of their own.
template <class Link, class Options>
void measure_domains(const char* name, std::size_t number, bool own) {
  asio::io_context io(1);
  const protection_domain pd(open_device());
  const memory_pool accepting(pd), connecting(pd);
  acceptor listener(io, any_port(pd.get_device()));
  connector initiator(io);
  times open, connected;
  std::deque<Link> links;
  const auto end = [](unsigned& ends) {
    return [&ends](error_code ec, const auto&) {
      check(ec, "connecting");
      ++ends;
    };
  };
  for (std::size_t i = 0; i < number; ++i) {
    Link& accepted = links.emplace_back(io);
    Link& client = links.emplace_back(io);
    unsigned ends = 0;
    const auto began = clock_type::now();
    accepted.open(accepting, Options().set_own_domain(own));
    open.microseconds.push_back(microseconds(clock_type::now() - began).count());
    client.open(connecting);
    listener.async_accept(accepted, end(ends));
    initiator.async_connect(client, listener.local_endpoint(), end(ends));
    run(io, [&] { return ends == 2; });
    connected.microseconds.push_back(microseconds(clock_type::now() - began).count());
  }
  const auto kib = [&] {
    return accepting.statistics().bytes_registered / 1024 / number;
  };
  std::printf("%4zu %s, %s: open %6.0f us, connected %6.0f us (medians); KiB registered for each: "
              "%zu idle",
              number, name, own ? "own domains" : "one domain ", open.median(), connected.median(),
              kib());
  if constexpr (std::is_same_v<Link, connection>) {
    const auto carry = [&](std::size_t i, std::size_t bytes) {
      const std::vector<char> data(bytes);
      unsigned ends = 0;
      links[2 * i + 1].async_send(asio::buffer(data), end(ends));
      links[2 * i].async_receive(end(ends));
      const auto began = clock_type::now();
      run(io, [&] { return ends == 2; });
      return microseconds(clock_type::now() - began).count();
    };
    const auto answer = [&](std::size_t i) {
      const std::vector<char> data(1000);
      unsigned ends = 0;
      links[2 * i].async_send(asio::buffer(data), end(ends));
      links[2 * i + 1].async_receive(end(ends));
      run(io, [&] { return ends == 2; });
    };
    times megabyte;
    for (std::size_t i = 0; i < number; ++i) {
      carry(i, 1000);
      answer(i);
    }
    std::printf(", %zu after 1000 bytes both ways", kib());
    for (std::size_t i = 0; i < 300; ++i)
      megabyte.microseconds.push_back(carry(0, std::size_t(1) << 20));
    std::printf("; a message of 1 MiB %.0f us", megabyte.median());
  }
  std::printf("\n");
}

} // namespace

int main(int argc, char** argv) {
  std::size_t count = 200, shared = 0, rounds = 5, domains = 0;
  CLI::App app("Times to connect and to close streams, one after another.");
  app.add_option("--streams", count, "how many")->check(CLI::Range(1, 100'000));
  app.add_option("--shared", shared,
                 "so many links on shared receives, which end together, instead")
      ->check(CLI::Range(1, 1000));
  app.add_option("--rounds", rounds, "of --shared")->check(CLI::Range(1, 1000));
  app.add_option("--domains", domains,
                 "so many links at a time, without and with protection domains of their own, "
                 "instead")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    if (domains != 0)
      for (const bool own : {false, true}) {
        measure_domains<connection, connection_options>("connections", domains, own);
        measure_domains<asio_rdma::stream, stream_options>("streams", domains, own);
      }
    else
      shared != 0 ? measure_shared(shared, rounds) : measure(count);
  } catch (const std::exception& e) {
    std::cerr << "bench_opening: " << e.what() << '\n';
    return 1;
  }
}
