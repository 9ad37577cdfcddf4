// SPDX-License-Identifier: BSL-1.0
//
// Streams that connect and close one after another, both ends in one context and one thread: the
// times, and how long one handler holds the thread. On soft with ASIO_RDMA_SOFT=mlx5 creating and
// destroying take as long as on an adapter.
#include <asio_rdma/asio_rdma.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <system_error>
#include <thread>
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

void measure(std::size_t count) {
  const char* const name = std::getenv("ASIO_RDMA_DEVICE");
  const char* const address = std::getenv("ASIO_RDMA_ADDRESS");
  asio::io_context io(1);
  const protection_domain pd(name != nullptr ? device::open(name) : device::open_first());
  const auto addresses = pd.get_device().addresses();
  if (address == nullptr && addresses.empty())
    throw std::runtime_error("the device has no address");
  memory_pool pool(pd);
  acceptor listener(io,
                    {address != nullptr ? asio::ip::make_address(address) : addresses.front(), 0});
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
    io.restart();
    close_handler.microseconds.push_back(run(io, [&] { return io.stopped(); }));
    io.restart();
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

} // namespace

int main(int argc, char** argv) {
  std::size_t count = 200;
  CLI::App app("Times to connect and to close streams, one after another.");
  app.add_option("--streams", count, "how many")->check(CLI::Range(1, 100'000));
  CLI11_PARSE(app, argc, argv);
  try {
    measure(count);
  } catch (const std::exception& e) {
    std::cerr << "bench_opening: " << e.what() << '\n';
    return 1;
  }
}
