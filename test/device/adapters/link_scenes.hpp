// SPDX-License-Identifier: BSL-1.0
// Scenes of connections and streams for any device: payloads of several sizes, in several parts.
#pragma once

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

namespace test {

/// Sends 100 KB there and back over two streams.
inline void carry_bytes() {
  stream_pair p;
  const auto bytes = pattern(100'000, 1);
  std::vector<std::uint8_t> there(bytes.size()), back(bytes.size());
  sent w, r, w2, r2;
  asio::async_write(p.a, asio::buffer(bytes), w.handler());
  asio::async_read(p.b, asio::buffer(there), r.handler());
  p.until([&] { return w.done() && r.done(); });
  asio::async_write(p.b, asio::buffer(there), w2.handler());
  asio::async_read(p.a, asio::buffer(back), r2.handler());
  p.until([&] { return w2.done() && r2.done(); });
  for (const sent& each : {w, r, w2, r2}) {
    INFO(describe(each.ec));
    CHECK(each.succeeded());
    CHECK(each.value == bytes.size());
  }
  CHECK((back == bytes)); // prints no bytes
}

/// b has lent memory with the pattern 1 to a.
struct lent_memory : talk {
  explicit lent_memory(std::size_t bytes) : talk({}, lending(bytes)), lent(filled(pool, bytes, 1)) {
    outcome<void> given;
    outcome<std::variant<registered_buffer, remote_region>> arrived;
    a.async_receive_region(arrived.handler());
    b.async_send_region(lent, access::remote_read | access::remote_write, given.handler());
    until([&] { return given.done() && arrived.done(); });
    REQUIRE(given.succeeded());
    REQUIRE(arrived.succeeded());
    target = std::get<remote_region>(arrived.value);
  }
  static connection_options lending(std::size_t bytes) {
    connection_options result;
    result.remote_memory.bytes = 2 * bytes;
    return result;
  }

  registered_buffer lent;
  remote_region target;
};

/// A program writes to memory of its peer and reads it back.
inline void lend_memory() {
  constexpr std::size_t bytes = 20'000;
  lent_memory t(bytes);
  const auto text = pattern(bytes, 3);
  std::vector<std::uint8_t> back(bytes);
  sent written, read;
  t.a.async_write(asio::buffer(text), t.target, written.handler());
  t.until([&] { return written.done(); });
  CHECK(written.succeeded());
  t.a.async_read(asio::buffer(back), t.target, read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.succeeded());
  CHECK((back == text));
}

/// Four parts of a registered buffer, all its bytes.
inline std::array<const_buffer, 4> parts_of(const registered_buffer& whole) {
  const std::size_t each = whole.size() / 4;
  const const_buffer all = whole;
  return {all.first(each), (all + each).first(each), (all + 2 * each).first(each), all + 3 * each};
}

/// More parts than the device has elements.
inline void write_parts() {
  lent_memory t(20'000);
  const registered_buffer from = filled(t.pool, 20'000, 2);
  sent written;
  t.a.async_write(parts_of(from), t.target, written.handler());
  t.until([&] { return written.done(); });
  CHECK(written.succeeded());
  CHECK(is_pattern(t.lent.data(), 20'000, 2));
}

inline void send_parts() {
  talk t;
  for (const std::size_t count : {1u, 2u, 3u, 4u}) {
    CAPTURE(count);
    const registered_buffer from = filled(t.pool, 3000, 2);
    const auto all = parts_of(from);
    const std::vector parts(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    sent s;
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.a.async_send(parts, s.handler());
    t.until([&] { return s.done() && r.done(); });
    CHECK(s.succeeded());
    REQUIRE(r.succeeded());
    CHECK(r.value.size() == 750 * count);
    CHECK(is_pattern(r.value.payload.data(), r.value.size(), 2));
  }
}

inline void carry_parts() {
  stream_pair p;
  const registered_buffer from = filled(p.pool, 30'000, 2);
  const auto all = parts_of(from);
  std::vector<std::uint8_t> there(22'500);
  sent w, r;
  p.a.async_write_some(std::array{all[0], all[1], all[2]}, w.handler());
  asio::async_read(p.b, asio::buffer(there), r.handler());
  p.until([&] { return w.done() && r.done(); });
  CHECK(w.succeeded());
  CHECK(w.value == there.size());
  CHECK(is_pattern(there.data(), there.size(), 2));
}

/// A message of this size arrives.
inline void send_message(talk& t, std::size_t bytes) {
  CAPTURE(bytes);
  const auto text = pattern(bytes, 2);
  sent s;
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.a.async_send(asio::buffer(text), s.handler());
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  REQUIRE(r.succeeded());
  REQUIRE(r.value.size() == bytes);
  CHECK(is_pattern(r.value.payload.data(), bytes, 2));
}

/// A message of each size.
inline void send_messages() {
  talk t;
  for (const std::size_t bytes : {0u, 8u, 64u, 200u, 5000u, 300000u})
    send_message(t, bytes);
}

/// Each scene, as a section of the test case.
inline void play_link_scenes() {
  SECTION("messages") { send_messages(); }
  SECTION("messages of several registered parts") { send_parts(); }
  SECTION("a stream") { carry_bytes(); }
  SECTION("a stream of several registered parts") { carry_parts(); }
  SECTION("lent memory") { lend_memory(); }
  SECTION("lent memory, written from several registered parts") { write_parts(); }
}

} // namespace test
