// SPDX-License-Identifier: BSL-1.0
// Bytes through a stream: in order, of any size, in both directions at once.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <functional>

namespace test::stream_bytes_tests {
namespace {

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

TEST_CASE("small writes that follow each other share frames, and a single one is sent at once") {
  stream_pair t;
  constexpr std::size_t size = 64, writes = 1000;
  const bytes values = pattern(size * writes, 6);
  const bool delays = GENERATE(true, false);
  t.a.set_option(asio::ip::tcp::no_delay(!delays));
  bytes got(values.size());
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  const std::uint64_t before = t.a.statistics().frames_sent;
  std::size_t n = 0;
  std::function<void()> write = [&] {
    asio::async_write(t.a, asio::buffer(&values[n * size], size),
                      [&](const error_code& ec, std::size_t) {
                        REQUIRE(!ec);
                        if (++n != writes)
                          write();
                      });
  };
  write();
  const auto frames = [&] {
    return t.a.statistics().frames_sent - before;
  };
  CHECK(frames() == 1);
  // Without delay, only writes that wait for the peer's receives share a frame. How many wait is a
  // matter of time, but the first ones find receives.
  constexpr std::size_t at_first = 8;
  t.until([&] { return n >= at_first; });
  if (!delays)
    CHECK(frames() >= at_first);
  t.until([&] { return read.done(); });
  CHECK(got == values);
  CAPTURE(frames());
  if (delays)
    CHECK(frames() < writes / 8);
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

} // namespace test::stream_bytes_tests
