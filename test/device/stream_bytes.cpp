// SPDX-License-Identifier: BSL-1.0
// Bytes through a stream: in order, of any size, both ways at once.
#include "catch.hpp"
#include "stream_support.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <random>
#include <thread>

namespace {

using namespace test;
using namespace asio::experimental::awaitable_operators;

using bytes = std::vector<std::uint8_t>;

} // namespace

TEST_CASE("a write of each size is read as it was") {
  stream_pair t;
  const std::size_t frame = t.b.options().receive_size - 16;
  for (const std::size_t n : {std::size_t(1), std::size_t(240), std::size_t(241), frame, frame + 1,
                              std::size_t(1) << 20}) {
    CAPTURE(n);
    const bytes sent = pattern(n, 5);
    bytes got(n);
    t.play([&]() -> asio::awaitable<void> {
      co_await (asio::async_write(t.a, asio::buffer(sent), asio::use_awaitable) &&
                asio::async_read(t.b, asio::buffer(got), asio::use_awaitable));
    }());
    CHECK(got == sent);
  }
}

TEST_CASE("registered memory is sent from where it lies, and received with its memory") {
  stream_pair t;
  const registered_buffer sent = t.pool.allocate(300000);
  const bytes values = pattern(sent.size(), 9);
  std::memcpy(sent.data(), values.data(), values.size());
  const auto form = GENERATE(0, 1, 2);
  outcome<std::size_t> wrote;
  if (form == 0)
    t.a.async_write_some(sent, wrote.handler());
  else if (form == 1)
    t.a.async_write_some(const_buffer(sent), wrote.handler());
  else
    t.a.async_write_some(asio::buffer(sent.data(), sent.size()), wrote.handler());
  bytes got;
  while (got.size() < values.size()) {
    outcome<registered_buffer> piece;
    t.b.async_receive(piece.handler());
    t.until([&] { return piece.done(); });
    REQUIRE(piece.ec == error_code());
    REQUIRE(piece.value.size() != 0);
    CHECK(piece.value.region() != nullptr);
    const auto* p = static_cast<const std::uint8_t*>(piece.value.data());
    got.insert(got.end(), p, p + piece.value.size());
  }
  t.until([&] { return wrote.done(); });
  CHECK(wrote.ec == error_code());
  CHECK(wrote.value == values.size());
  CHECK(got == values);
}

TEST_CASE("random sizes from 1 byte to 1 MiB, both ways at once") {
  const char* const wanted = std::getenv("ASIO_RDMA_STREAM_BYTES");
  const std::uint64_t total =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::uint64_t(64) << 20;
  stream_pair t;
  const auto begin = std::chrono::steady_clock::now();
  const auto most = [](std::mt19937& random) {
    return std::size_t(1) << random() % 21;
  };
  const auto writes = [&](asio_rdma::stream& to, unsigned seed) -> asio::awaitable<void> {
    std::mt19937 random(seed);
    bytes memory;
    for (std::uint64_t at = 0; at < total;) {
      memory.resize(1 + random() % most(random));
      for (std::size_t i = 0; i < memory.size(); ++i)
        memory[i] = static_cast<std::uint8_t>(((at + i) * 2654435761u) >> 13);
      co_await asio::async_write(to, asio::buffer(memory), asio::use_awaitable);
      at += memory.size();
    }
    to.shutdown(asio::socket_base::shutdown_send);
  };
  std::uint64_t wrong = 0, read = 0;
  const auto reads = [&](asio_rdma::stream& from, unsigned seed) -> asio::awaitable<void> {
    std::mt19937 random(seed);
    bytes memory;
    for (std::uint64_t at = 0;;) {
      memory.resize(1 + random() % most(random));
      error_code ec;
      const std::size_t n = co_await from.async_read_some(
          asio::buffer(memory), asio::redirect_error(asio::use_awaitable, ec));
      for (std::size_t i = 0; i < n; ++i)
        wrong += memory[i] != static_cast<std::uint8_t>(((at + i) * 2654435761u) >> 13);
      at += n;
      read += n;
      if (ec == asio::error::eof)
        break;
      REQUIRE(ec == error_code());
    }
  };
  t.play([&]() -> asio::awaitable<void> {
    co_await (writes(t.a, 1) && writes(t.b, 2) && reads(t.a, 3) && reads(t.b, 4));
  }());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  WARN(static_cast<double>(read) / 1e6 << " MB in " << took.count() << " s");
  CHECK(wrong == 0);
  CHECK(read >= 2 * total);
}

TEST_CASE("blocking functions need no thread that runs the context") {
  stream_pair t;
  t.io.stop();
  std::thread peer([&] {
    // A context of its own would run b; here nobody runs anything.
    bytes got(100000);
    for (int i = 0; i < 20; ++i) {
      asio::read(t.b, asio::buffer(got));
      asio::write(t.b, asio::buffer(got));
    }
    error_code ec;
    CHECK(t.b.read_some(asio::buffer(got), ec) == 0);
    CHECK(ec == asio::error::eof);
  });
  const bytes sent = pattern(100000, 3);
  for (int i = 0; i < 20; ++i) {
    bytes got(sent.size());
    asio::write(t.a, asio::buffer(sent));
    asio::read(t.a, asio::buffer(got));
    CHECK(got == sent);
  }
  t.a.shutdown(asio::socket_base::shutdown_send);
  peer.join();
}
