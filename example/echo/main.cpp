// SPDX-License-Identifier: BSL-1.0
// echo: a client sends 64 bytes and the server sends them back, for a second in each style of
// Asio's completion tokens. The styles take turns, and the median of their rounds is printed, so
// that a moment of other work on the machine does not make one style look slow. Client and server
// are on one io_context, connected by the device's loopback.
#include "../one_line.hpp"
#include "../refuse_nan.hpp"
#include "echo.hpp"

#include <CLI/CLI.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

namespace {

using asio::ip::tcp;
using clock_type = std::chrono::steady_clock;

constexpr int failed = 2;
constexpr std::size_t rounds = 5;

/// Another thread that runs the context during the lifetime of this object.
class runner {
public:
  explicit runner(asio::io_context& io)
      : io_(io), work_(io.get_executor()), thread_([&io] { io.run(); }) {}
  ~runner() {
    io_.stop();
    thread_.join();
  }

private:
  asio::io_context& io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

struct style {
  const char* name;
  std::function<count(client&, const stop_flag&)> run;
  std::array<double, rounds> rates{}; ///< Round trips a second, in each round.
};

/// Returns round trips a second.
double measure(asio::io_context& io, client& c, const style& s, double seconds) {
  // The timer's handler may run after this function has thrown.
  const auto stop = std::make_shared<stop_flag>(false);
  asio::steady_timer timer(
      io, std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(seconds)));
  auto expired = timer.async_wait(asio::use_future([stop](error_code) { *stop = true; }));
  const auto begin = clock_type::now();
  const count trips = s.run(c, *stop);
  const double elapsed = std::chrono::duration<double>(clock_type::now() - begin).count();
  expired.get();
  return double(trips) / elapsed;
}

void print_median(style& s) {
  const auto middle = s.rates.begin() + rounds / 2;
  std::nth_element(s.rates.begin(), middle, s.rates.end());
  std::printf("%-14s %8.0f round trips/s  %6.1f us each\n", s.name, *middle, 1e6 / *middle);
}

void run(const std::optional<std::string>& device_name, double seconds, const std::string& only) {
  const auto device =
      device_name ? asio_rdma::device::open(*device_name) : asio_rdma::device::open_first();
  const protection_domain pd(device);
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, tcp::endpoint(tcp::v4(), 0));
  asio_rdma::connector connector(io);
  queue_pair server(io, pd);
  client c(io, pd);
  const runner thread(io);

  auto served = asio::co_spawn(io, serve(server, pd), asio::use_future);
  auto served_too = asio::co_spawn(io, serve(server, pd), asio::use_future);
  auto accepted = acceptor.async_accept(server, asio::use_future);
  const tcp::endpoint to(asio::ip::address_v4::loopback(), acceptor.local_endpoint().port());
  connector.async_connect(c.qp, to, asio::use_future).get();
  accepted.get();
  server.async_wait_disconnect([&server](error_code) { server.close(); });
  std::printf("echo on %s, 64 bytes, medians of %zu rounds\n", device.name().c_str(), rounds);
  std::fflush(stdout);

  const auto coroutine = [&io](auto function) {
    return [&io, function](client& cl, const stop_flag& stop) {
      return asio::co_spawn(io, function(cl, stop), asio::use_future).get();
    };
  };
  std::array<style, 5> styles{{
      {"callback", by_callback},
      {"use_future", by_future},
      {"use_awaitable", coroutine(by_awaitable)},
      {"as_tuple", coroutine(by_tuple)},
      {"deferred", coroutine(by_deferred)},
  }};
  const auto chosen = [&only](const style& s) {
    return only.empty() || only == s.name;
  };
  for (std::size_t round = 0; round < rounds; ++round)
    for (style& s : styles)
      if (chosen(s))
        s.rates[round] = measure(io, c, s, seconds / double(rounds));
  for (style& s : styles)
    if (chosen(s))
      print_median(s);

  c.qp.close();
  served.get();
  served_too.get();
}

int complain(const std::string& line) {
  std::cerr << "echo: " << one_line(line) << std::endl;
  return failed;
}

} // namespace

int main(int argc, char* argv[]) {
  std::optional<std::string> device;
  std::string only;
  double seconds = 1;
  if (const char* name = std::getenv("ASIO_RDMA_DEVICE"))
    device = name;
  CLI::App app("Measures round trips of a message, in each style of completion token");
  app.add_option("--device", device,
                 "RDMA device, such as rxe0 (default: $ASIO_RDMA_DEVICE, or the first)");
  app.add_option("--seconds", seconds, "Duration of each style (default 1)")
      ->check(CLI::Range(0.001, 86400.0))
      ->check(refuse_nan);
  app.add_option("--style", only, "The only style to run")
      ->check(CLI::IsMember({"callback", "use_future", "use_awaitable", "as_tuple", "deferred"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& e) {
    return complain(std::string(e.what()) + " (--help tells more)");
  }
  const std::string where = device ? "'" + *device + "': " : "";
  try {
    run(device, seconds, only);
  } catch (const boost::system::system_error& e) {
    return complain(where + e.code().message());
  } catch (const std::exception& e) {
    return complain(where + e.what());
  }
}
