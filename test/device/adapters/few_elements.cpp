// SPDX-License-Identifier: BSL-1.0
// A device with its own limits, with those of a kind of adapter, or with those of erdma on the
// transport of another device (interposer/erdma_limits.cpp): requests of several parts, short and
// long.
#include "catch.hpp"
#include "device/adapters/link_scenes.hpp"
#include "interposer/erdma_limits.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace test::few_elements_tests {
namespace {

bool has_erdma_limits() { return get_erdma_refusals != nullptr; }

/// Checks at its end that the library has posted nothing beyond the limits.
struct limited {
  limited() = default;
  limited(const limited&) = delete;
  ~limited() {
    if (has_erdma_limits())
      CHECK(get_erdma_refusals().posts == before);
  }
  unsigned before = has_erdma_limits() ? get_erdma_refusals().posts : 0;
};

/// Numbered bytes in b's memory, or a's.
bool is_numbered(const memory& m, std::size_t offset, std::size_t bytes, std::uint32_t seed) {
  const std::string text = m.text(offset, bytes);
  return is_pattern(text.data(), bytes, seed);
}
void number(memory& m, std::size_t offset, std::size_t bytes, std::uint32_t seed) {
  const auto text = pattern(bytes, seed);
  std::copy(text.begin(), text.end(), m.data() + offset);
}

} // namespace

TEST_CASE("a queue pair finds limits that its device does not report", "[h8][h9]") {
  const limited l;
  const bool erdma = has_erdma_limits();
  const unsigned refused = erdma ? get_erdma_refusals().queue_pairs : 0;
  queue_pair_options o;
  o.max_send_sge = o.max_receive_sge = 6;
  o.max_inline = 400;
  pair p(o);
  const auto elements = std::size_t(p.a.options().max_send_sge);
  if (erdma) {
    CHECK(p.dev.attributes().max_sge == 1);
    CHECK(p.a.options().max_send_sge == 6);
    CHECK(p.a.options().max_receive_sge == 1);
    CHECK(p.a.options().max_inline == (p.dev.type() == transport::iwarp ? 64 : 96)); // siw: 64
    CHECK(get_erdma_refusals().queue_pairs > refused);
  }
  // A WRITE of as many parts as a request has, a READ into one, a message of inline data.
  constexpr std::size_t part = 1000;
  const std::size_t bytes = elements * part;
  number(p.ma, 0, bytes, 1);
  std::vector<const_buffer> parts;
  for (std::size_t i = 0; i != elements; ++i)
    parts.emplace_back(p.ma.buffer(i * part, part));
  sent written, read, first;
  got arrived;
  p.b.async_receive(p.mb.buffer(10'000, bytes), arrived.handler());
  p.a.async_send(parts, first.handler());
  p.until([&] { return first.done() && arrived.done(); });
  REQUIRE(first.succeeded());
  CHECK(is_numbered(p.mb, 10'000, bytes, 1));
  p.a.async_write(parts, p.mb.remote(20'000, bytes), written.handler());
  p.until([&] { return written.done(); });
  REQUIRE(written.succeeded());
  CHECK(p.placed());
  CHECK(is_numbered(p.mb, 20'000, bytes, 1));
  p.a.async_read(p.ma.buffer(30'000, bytes), p.mb.remote(20'000, bytes), read.handler());
  p.until([&] { return read.done(); });
  REQUIRE(read.succeeded());
  CHECK(is_numbered(p.ma, 30'000, bytes, 1));
  CHECK(p.carries(std::string(p.a.options().max_inline, 'i')));
  CHECK(p.carries(std::string(p.a.options().max_inline + 1, 'n')));
}

TEST_CASE("messages, streams and lent memory on a device", "[h4][h7][h8]") {
  const limited l;
  play_link_scenes();
}

TEST_CASE("registered memory of a message, or of a write, that is read by the peer", "[h8]") {
  const limited l;
  constexpr std::size_t bytes = (std::size_t(4) << 20) + 3; // more than is read ahead
  sent given, taken;
  SECTION("a message") {
    talk t;
    const registered_buffer from = filled(t.pool, bytes, 5), to = t.pool.allocate(bytes);
    t.b.async_receive(to, taken.handler());
    t.a.async_send(from, given.handler());
    t.until([&] { return given.done() && taken.done(); });
    CHECK(is_pattern(to.data(), bytes, 5));
    CHECK(t.a.statistics().rendezvous_sent == 1);
  }
  SECTION("a stream, either way") {
    stream_pair p;
    for (const bool back : {false, true}) {
      auto& writer = back ? p.b : p.a;
      auto& reader = back ? p.a : p.b;
      const registered_buffer from = filled(p.pool, bytes, 6), to = p.pool.allocate(bytes);
      given = {}, taken = {};
      asio::async_write(writer, from, given.handler());
      asio::async_read(reader, asio::buffer(to.data(), bytes), taken.handler());
      p.until([&] { return given.done() && taken.done(); });
      CHECK(is_pattern(to.data(), bytes, 6));
    }
  }
  CHECK(given.succeeded());
  CHECK(taken.succeeded());
}

} // namespace test::few_elements_tests
