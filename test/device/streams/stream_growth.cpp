// SPDX-License-Identifier: BSL-1.0
// Receives that grow to the peer's writes, and the memory for them.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace test::stream_growth_tests {
namespace {

constexpr std::size_t kilobyte = 1024;

/// Writes `n` bytes of plain memory, and reads them.
void pass(stream_pair& t, std::size_t n) {
  const auto values = pattern(n, 3);
  std::vector<std::uint8_t> got(n);
  sent write, read;
  asio::async_write(t.a, asio::buffer(values), write.handler());
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.until([&] { return write.done() && read.done(); });
  REQUIRE(write.succeeded());
  REQUIRE(read.succeeded());
  REQUIRE(got == values);
}

/// The frames that a sends for a write of 64 KiB.
std::uint64_t frames(stream_pair& t) {
  const std::uint64_t before = t.a.statistics().frames_sent;
  pass(t, 64 * kilobyte);
  return t.a.statistics().frames_sent - before;
}

void grow(stream_pair& t) {
  for (int i = 0; i < 8; ++i)
    pass(t, 64 * kilobyte);
}

} // namespace

TEST_CASE("long writes of plain memory come in few frames once the receives have grown") {
  stream_pair t;
  CHECK(frames(t) >= 16);
  grow(t);
  CHECK(frames(t) <= 4); // and credits
}

TEST_CASE("receives that may not grow stay as they are") {
  stream_pair t({}, fixed_receives(4096));
  grow(t);
  CHECK(frames(t) >= 16);
}

TEST_CASE("receives stay as they are if the pool has too little memory") {
  stream_pair t;
  const auto before = t.pool.statistics().bytes_in_use;
  std::optional<registered_buffer> most = t.pool.allocate(t.pool.limit() / 2 - before);
  grow(t);
  CHECK(frames(t) >= 16);
  t.a.close();
  t.b.close();
  drain(t.io);
  most.reset();
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("few bytes are read ahead if much of the pool is in use") {
  const std::size_t bytes = 1024 * kilobyte;
  stream_pair t;
  if (!streams_offer(t.dev))
    return test::not_on_this_device("offers of streams");
  test::memory own(t.pd, bytes, access::local_write);
  const auto values = pattern(bytes, 5);
  std::memcpy(own.data(), values.data(), bytes);
  const registered_buffer half = t.pool.allocate(t.pool.limit() / 2);
  const std::uint64_t before = t.pool.statistics().bytes_in_use;
  sent write, read;
  t.a.async_write_some(const_buffer(own.buffer()), write.handler());
  t.until([&] { return t.b.available() != 0; });
  for (int i = 0; i < 1000; ++i)
    t.io.poll();
  CHECK(t.pool.statistics().bytes_in_use - before <= t.b.options().receive_size);
  std::vector<std::uint8_t> got(bytes);
  std::size_t first = 0;
  while (first < 10'000) { // in small pieces
    sent some;
    t.b.async_read_some(asio::buffer(asio::buffer(got) + first, 1000), some.handler());
    t.until([&] { return some.done(); });
    REQUIRE(some.succeeded());
    first += some.value;
  }
  asio::async_read(t.b, asio::buffer(got) + first, read.handler());
  t.until([&] { return write.done() && read.done(); });
  CHECK(write.succeeded());
  REQUIRE(read.succeeded());
  CHECK(is_pattern(got.data(), bytes, 5));
}

TEST_CASE("few bytes that are received with their memory do not keep a large receive") {
  stream_pair t;
  grow(t);
  std::vector<registered_buffer> pieces;
  const auto before = t.pool.statistics().bytes_in_use;
  for (int i = 0; i < 50; ++i) { // more than there are receives
    outcome<registered_buffer> piece;
    t.b.async_receive(piece.handler());
    asio::write(t.a, asio::buffer("some", 4));
    t.until([&] { return piece.done(); });
    REQUIRE(piece.succeeded());
    REQUIRE(piece.value.size() == 4);
    CHECK(piece.value.region() != nullptr);
    pieces.push_back(std::move(piece.value));
  }
  CHECK(t.pool.statistics().bytes_in_use < before + 50 * kilobyte);
  for (const registered_buffer& p : pieces)
    CHECK(std::string_view(static_cast<const char*>(p.data()), p.size()) == "some");
}

TEST_CASE("many bytes that are received with their memory are not copied") {
  stream_pair t;
  grow(t);
  std::vector<registered_buffer> pieces;
  const auto values = pattern(64 * kilobyte, 4);
  for (int i = 0; i < 50; ++i) {
    sent write;
    t.a.async_write_some(asio::buffer(values), write.handler());
    std::vector<std::uint8_t> got;
    while (got.size() != values.size()) {
      outcome<registered_buffer> piece;
      t.b.async_receive(piece.handler());
      t.until([&] { return piece.done(); });
      REQUIRE(piece.succeeded());
      const auto* p = static_cast<const std::uint8_t*>(piece.value.data());
      got.insert(got.end(), p, p + piece.value.size());
      pieces.push_back(std::move(piece.value));
    }
    t.until([&] { return write.done(); });
    REQUIRE(got == values);
  }
  pieces.clear();
  t.a.close();
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

} // namespace test::stream_growth_tests
