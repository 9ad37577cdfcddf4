// SPDX-License-Identifier: BSL-1.0
// Bytes through a stream in both directions, in reads and writes of random sizes from 1 byte to 1
// MiB: copied, lent, read directly to their place, and sometimes cancelled. The length is an
// option. Every byte is compared, and memory must not grow.
#include "device/support/long_run.hpp"
#include "device/support/pair.hpp"

#include <asio_rdma/stream.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <thread>

namespace {

using namespace test;
using namespace asio::experimental::awaitable_operators;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t longest = endless_bytes::longest;

struct options {
  std::uint64_t bytes = 0; // in each direction, if not 0
  double seconds = 0;      // if not 0
  std::uint32_t seed = 1;
  clock_type::time_point begin = clock_type::now();

  /// The share of the work that is done; 1 and more at the end.
  double progress(std::uint64_t done) const {
    double result = 0;
    if (bytes != 0)
      result = static_cast<double>(done) / static_cast<double>(bytes);
    if (seconds != 0)
      result = std::max(result,
                        std::chrono::duration<double>(clock_type::now() - begin).count() / seconds);
    return result;
  }
};

// Sizes of a few bytes are as frequent as sizes of hundreds of thousands.
std::size_t any_size(std::mt19937& random) {
  return 1 + random() % (std::size_t(1) << random() % 21);
}

/// One end, with its own thread.
struct side {
  explicit side(const device& d) : pool(protection_domain(d)) {
    pool.reserve(most_registered);
    s.open(pool);
  }

  asio::awaitable<void> write(const options& o, std::uint32_t seed) {
    const endless_bytes out(seed);
    std::mt19937 random(seed);
    const registered_buffer registered = pool.allocate(longest);
    while (o.progress(written) < 1) {
      const std::size_t n = any_size(random);
      const std::uint8_t* const from = out.at(written);
      error_code ec;
      const auto token = [&] {
        return asio::bind_cancellation_slot(of_write.slot(),
                                            asio::redirect_error(asio::use_awaitable, ec));
      };
      if (random() % 2 == 0) {
        written += co_await s.async_write_some(asio::buffer(from, n), token());
      } else {
        std::memcpy(registered.data(), from, n);
        written += co_await s.async_write_some(registered.slice(0, n), token());
      }
      check(ec, "write");
    }
    s.shutdown(asio::socket_base::shutdown_send);
  }

  asio::awaitable<void> read(const options& o, std::uint32_t seed) {
    const endless_bytes in(seed);
    std::mt19937 random(seed + 1);
    std::vector<std::uint8_t> memory(longest);
    const registered_buffer registered = pool.allocate(longest);
    for (;;) {
      error_code ec;
      registered_buffer piece;
      const std::uint8_t* got = memory.data();
      std::size_t n = 0;
      const auto token = [&] {
        return asio::bind_cancellation_slot(of_read.slot(),
                                            asio::redirect_error(asio::use_awaitable, ec));
      };
      switch (random() % 3) {
      case 0:
        n = co_await s.async_read_some(asio::buffer(memory, any_size(random)), token());
        break;
      case 1:
        n = co_await s.async_read_some(registered.slice(0, any_size(random)), token());
        got = static_cast<const std::uint8_t*>(registered.data());
        break;
      default:
        piece = co_await s.async_receive(token());
        got = static_cast<const std::uint8_t*>(piece.data());
        n = piece.size();
      }
      if (ec == asio::error::eof)
        co_return;
      if (ec && n != 0)
        throw std::runtime_error("a cancelled read has taken something");
      check(ec, "read");
      in.compare(bytes_read, got, n);
      bytes_read += n;
      look(o.progress(bytes_read));
    }
  }

  asio::awaitable<void> cancel(std::uint32_t seed) {
    std::mt19937 random(seed + 2);
    while (!over) {
      pause.expires_after(std::chrono::microseconds(random() % 5000));
      error_code ec;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      of_read.emit(asio::cancellation_type::total);
      if (random() % 2 == 0)
        of_write.emit(asio::cancellation_type::partial);
    }
  }

  void check(const error_code& ec, const char* what) {
    if (ec == asio::error::operation_aborted)
      ++cancelled;
    else if (ec)
      throw system_error(ec, what);
  }

  // Compares the memory in use, at each fifth of the work, with that at the first fifth.
  void look(double progress) {
    if (progress < next_look)
      return;
    next_look += 0.2;
    now.emplace(pool);
    if (!early)
      early = now;
    now->compare(*early);
  }

  memory_pool pool;
  asio::io_context io{1};
  asio_rdma::stream s{io};
  asio::cancellation_signal of_read, of_write;
  asio::steady_timer pause{io};
  bool over = false;
  std::uint64_t written = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t cancelled = 0;
  double next_look = 0.2;
  std::optional<memory_in_use> early, now;
};

void connect(const device& d, side& a, side& b) {
  acceptor listener(b.io);
  connector initiator(a.io);
  outcome<connection_info> accepted, connected;
  listener.open({device_address(d), 0});
  listener.async_accept(b.s, accepted.handler());
  initiator.async_connect(a.s, listener.local_endpoint(), connected.handler());
  while (!accepted.done() || !connected.done())
    for (asio::io_context* io : {&a.io, &b.io}) {
      io->restart();
      io->poll();
    }
  if (accepted.ec || connected.ec)
    throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
}

std::thread play(side& s, const options& o, std::uint32_t out, std::uint32_t in,
                 std::exception_ptr& failure) {
  const auto both = [&s, &o, out, in]() -> asio::awaitable<void> {
    co_await (s.write(o, out) && s.read(o, in));
  };
  return std::thread([&s, &failure, both, out] {
    asio::co_spawn(s.io, both, [&](std::exception_ptr e) {
      failure = e;
      s.s.close();
      s.over = true;
      s.pause.cancel();
    });
    asio::co_spawn(s.io, s.cancel(out), asio::detached);
    s.io.restart();
    s.io.run();
  });
}

void run(const options& o) {
  const device d = open_device();
  side a(d), b(d);
  connect(d, a, b);
  std::exception_ptr failure[2];
  std::thread one = play(a, o, o.seed, o.seed + 1, failure[0]);
  std::thread other = play(b, o, o.seed + 1, o.seed, failure[1]);
  one.join();
  other.join();
  const std::chrono::duration<double> took = clock_type::now() - o.begin;
  for (const std::exception_ptr& e : failure)
    if (e)
      std::rethrow_exception(e);
  if (a.bytes_read != b.written || b.bytes_read != a.written)
    throw std::runtime_error("not all that was written has been read");
  if (a.cancelled == 0 || b.cancelled == 0)
    throw std::runtime_error("nothing was cancelled");
  if (!a.early || !b.early)
    throw std::runtime_error("too short to tell whether memory grows");
  if (a.pool.statistics().blocks_in_use + b.pool.statistics().blocks_in_use != 0)
    throw std::runtime_error("not all memory has come back to the pools");
  const double megabytes = static_cast<double>(a.bytes_read + b.bytes_read) / 1e6;
  const auto mebibytes = [](std::uint64_t n) {
    return static_cast<double>(n) / (1 << 20);
  };
  std::printf("%.1f MB in %.1f s: %.1f MB/s, %llu cancelled; %.1f MiB resident after a fifth, %.1f "
              "at the end, "
              "%.1f of them registered\n",
              megabytes, took.count(), megabytes / took.count(),
              static_cast<unsigned long long>(a.cancelled + b.cancelled),
              mebibytes(a.early->resident), mebibytes(a.now->resident),
              mebibytes(a.now->registered + b.now->registered));
}

} // namespace

int main(int argc, char** argv) {
  options o;
  const std::map<std::string, double> units{{"s", 1}, {"m", 60}, {"h", 3600}};
  CLI::App app("Sends bytes through a stream, both ways at once, and compares every byte");
  app.add_option("--bytes", o.bytes, "bytes each way")->transform(CLI::AsSizeValue(false));
  app.add_option(
         "--for", o.seconds,
         "duration (1m); with --bytes as well, the run ends at the first limit that it reaches")
      ->transform(CLI::AsNumberWithUnit(units));
  app.add_option("--seed", o.seed, "seed of the sizes and the bytes (1)");
  CLI11_PARSE(app, argc, argv);
  if (o.bytes == 0 && o.seconds == 0)
    o.seconds = 60;
  try {
    run(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
