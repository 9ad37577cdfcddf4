// SPDX-License-Identifier: BSL-1.0

#include "connecting/handshake.hpp"
#include "catch.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using action = exchange_steps::action;

handshake a_handshake() {
  handshake h;
  h.what = handshake::kind::message;
  h.receives = 0x01020304;
  h.receive_size = 4096;
  h.max_reads = 16;
  h.atomics = IBV_ATOMIC_HCA;
  h.promise = 0x0908;
  handshake_address& part = h.address.emplace();
  part.address.number = 0x123456;
  part.address.packet_number = 0xabcdef;
  part.address.lid = 0x0708;
  part.address.mtu = IBV_MTU_2048;
  part.address.max_reads = 16;
  for (std::size_t i = 0; i < 16; ++i)
    part.address.gid.raw[i] = static_cast<std::uint8_t>(i + 1);
  return h;
}

std::span<const std::byte> record(const handshake_bytes& bytes, const handshake& h) {
  return std::span(bytes).first(h.size());
}

void set(handshake_bytes& bytes, std::size_t at, unsigned value) {
  bytes[at] = static_cast<std::byte>(value);
}

bool says(const error_code& ec, const std::string& text) {
  return ec == error::incompatible_peer && ec.message().find(text) != std::string::npos;
}

} // namespace

TEST_CASE("a handshake record has the documented layout") {
  const handshake_bytes bytes = encode(a_handshake());
  const unsigned char expected[handshake::full_size] = {
      'A', 'R', 'D', 'M', 5,  1,    1,    0,    4,  3,    2,    1,    0, 16, 0, 0, 16, 1, 8,
      9,   0,   0,   0,   0,  0x56, 0x34, 0x12, 0,  0xef, 0xcd, 0xab, 0, 1,  2, 3, 4,  5, 6,
      7,   8,   9,   10,  11, 12,   13,   14,   15, 16,   8,    7,    4, 2,  0, 0, 0,  0};
  CHECK(std::memcmp(bytes.data(), expected, sizeof(expected)) == 0);
}

TEST_CASE("a handshake record comes back as it was") {
  for (const bool with_address : {true, false}) {
    handshake h = a_handshake();
    if (!with_address)
      h.address.reset();
    const handshake_bytes bytes = encode(h);
    handshake back;
    REQUIRE(!decode(record(bytes, h), back));
    CHECK(back.what == h.what);
    CHECK(back.receives == h.receives);
    CHECK(back.receive_size == h.receive_size);
    CHECK(back.max_reads == h.max_reads);
    CHECK(back.atomics == h.atomics);
    CHECK(back.promise == h.promise);
    REQUIRE(back.address.has_value() == with_address);
    if (with_address) {
      CHECK(back.address->type == h.address->type);
      CHECK(back.address->address.number == 0x123456);
      CHECK(back.address->address.packet_number == 0xabcdef);
      CHECK(back.address->address.lid == 0x0708);
      CHECK(back.address->address.mtu == IBV_MTU_2048);
      CHECK(back.address->address.max_reads == 16);
      CHECK(std::memcmp(back.address->address.gid.raw, h.address->address.gid.raw, 16) == 0);
    }
    CHECK(encode(back) == bytes);
  }
}

TEST_CASE("no byte of a handshake record is overlooked") {
  // Each wrong byte is either refused or changes what is decoded.
  for (const bool with_address : {true, false}) {
    handshake h = a_handshake();
    if (!with_address)
      h.address.reset();
    const handshake_bytes good = encode(h);
    for (std::size_t i = 0; i < h.size(); ++i) {
      for (unsigned value = 0; value < 256; ++value) {
        handshake_bytes bad = good;
        set(bad, i, value);
        handshake back;
        const error_code ec = decode(record(bad, h), back);
        INFO("byte " << i << " is " << value);
        CHECK((ec ? ec == error::incompatible_peer : encode(back) == bad));
      }
    }
  }
}

TEST_CASE("a handshake record out of range is refused") {
  struct row {
    const char* what;
    std::size_t at;
    unsigned value;
  };
  const auto [what, at, value] = GENERATE(values<row>({
      {"magic", 0, 'B'},
      {"magic", 3, 'V'},
      {"an older version", 4, 4},
      {"a newer version", 4, 6},
      {"kind", 5, 3},
      {"unknown flag", 6, 3},
      {"unknown flag", 7, 1},
      {"atomic capability", 17, 3},
      {"data behind an address", 20, 1},
      {"reserved", 21, 1},
      {"reserved", 23, 1},
      {"queue pair number beyond 24 bits", 27, 1},
      {"packet number beyond 24 bits", 31, 1},
      {"no MTU", 50, 0},
      {"MTU", 50, 6},
      {"queue pair type", 51, 4},
      {"reserved", 52, 1},
      {"reserved", 55, 0x80},
  }));
  handshake_bytes bytes = encode(a_handshake());
  set(bytes, at, value);
  handshake result;
  result.receives = 77;
  INFO(what);
  CHECK(decode(bytes, result) == error::incompatible_peer);
  CHECK(result.receives == 77); // `result` is unchanged
}

TEST_CASE("a handshake record with an address that cannot be is refused") {
  const auto change = GENERATE(values<std::function<void(handshake&)>>({
      [](handshake& h) { h.address->address.number = 0; },
      [](handshake& h) { h.address->address.number = 1; },
      [](handshake& h) { h.address->address.number = 0xffffff; },
      [](handshake& h) { h.address->address.lid = 0, h.address->address.gid = {}; },
  }));
  handshake h = a_handshake();
  change(h);
  handshake result;
  CHECK(decode(encode(h), result) == error::incompatible_peer);
}

TEST_CASE("a truncated handshake record is refused") {
  for (const bool with_address : {true, false}) {
    handshake h = a_handshake();
    if (!with_address)
      h.address.reset();
    const handshake_bytes bytes = encode(h);
    handshake result;
    for (std::size_t n = 0; n < h.size(); ++n)
      CHECK(decode(std::span(bytes).first(n), result) == error::incompatible_peer);
    CHECK(!decode(std::span(bytes).first(h.size()), result));
  }
}

TEST_CASE("only zeros may pad a handshake record without an address") {
  handshake h = a_handshake();
  h.address.reset();
  handshake_bytes bytes = encode(h);
  handshake result;
  CHECK(!decode(bytes, result));
  bytes.back() = std::byte(1);
  CHECK(decode(bytes, result) == error::incompatible_peer);
}

TEST_CASE("the beginning of a handshake record is known before the rest has come") {
  const handshake_bytes good = encode(a_handshake());
  for (std::size_t n = 0; n <= handshake::prefix_size; ++n)
    CHECK(is_handshake_prefix(std::span(good).first(n)));
  for (std::size_t i = 0; i < handshake::prefix_size; ++i) {
    handshake_bytes bad = good;
    set(bad, i, 0xff);
    CHECK(is_handshake_prefix(std::span(bad).first(i)));
    for (std::size_t n = i + 1; n <= handshake::prefix_size; ++n)
      CHECK(!is_handshake_prefix(std::span(bad).first(n)));
  }
}

TEST_CASE("no byte of a verdict is overlooked") {
  const auto good = encode(verdict::failed);
  verdict result{};
  REQUIRE(!decode(std::span(good), result));
  CHECK(result == verdict::failed);
  for (std::size_t i = 0; i < verdict_size; ++i) {
    for (unsigned value = 0; value < 256; ++value) {
      auto bad = good;
      bad[i] = static_cast<std::byte>(value);
      const error_code ec = decode(std::span(std::as_const(bad)), result);
      INFO("byte " << i << " is " << value);
      CHECK((ec ? ec == error::incompatible_peer : encode(result) == bad));
    }
  }
}

// --- The steps -------------------------------------------------------------------------------

namespace {

handshake raw(std::uint32_t number) {
  handshake h = a_handshake();
  h.what = handshake::kind::raw;
  h.address->address.number = number;
  return h;
}

/// One side: its steps, and the bytes that were written to it and not yet read.
struct side {
  explicit side(const handshake& h, error_code why = {}) : steps(h, why) {}

  /// Performs the next steps while there is something to read; reads at most `chunk` bytes at a
  /// time. True if any step was made.
  bool run(side& other, std::size_t chunk = 1000) {
    bool any = false;
    for (;; any = true) {
      switch (steps.next()) {
      case action::write: {
        const asio::const_buffer b = steps.output();
        const auto* p = static_cast<const std::byte*>(b.data());
        other.inbox.insert(other.inbox.end(), p, p + b.size());
        written += b.size();
        steps.on_written({});
        break;
      }
      case action::read: {
        if (inbox.empty())
          return any;
        const asio::mutable_buffer b = steps.input();
        const std::size_t n = std::min({chunk, b.size(), inbox.size()});
        REQUIRE(n > 0);
        std::copy_n(inbox.begin(), n, static_cast<std::byte*>(b.data()));
        inbox.erase(inbox.begin(), inbox.begin() + static_cast<std::ptrdiff_t>(n));
        steps.on_read({}, n);
        break;
      }
      case action::connect:
        connected_to = steps.peer().address->address.number;
        steps.on_connected(connect_error);
        break;
      case action::finish:
        return any;
      }
    }
  }

  void receive(const handshake_bytes& bytes) {
    inbox.insert(inbox.end(), bytes.begin(), bytes.end());
  }

  exchange_steps steps;
  std::vector<std::byte> inbox;
  std::size_t written = 0;
  std::uint32_t connected_to = 0;
  error_code connect_error;
};

void run(side& a, side& b, std::size_t chunk = 1000) {
  bool any = true;
  while (any) {
    any = a.run(b, chunk);
    any = b.run(a, chunk) || any;
  }
  REQUIRE(a.steps.next() == action::finish);
  REQUIRE(b.steps.next() == action::finish);
}

} // namespace

TEST_CASE("two sides connect to each other, however their bytes are cut") {
  for (const std::size_t chunk : {1u, 3u, 7u, 55u, 56u, 1000u}) {
    side a(raw(20)), b(raw(30));
    run(a, b, chunk);
    CHECK(!a.steps.result());
    CHECK(!b.steps.result());
    CHECK(a.steps.connected());
    CHECK(b.steps.connected());
    CHECK(a.connected_to == 30);
    CHECK(b.connected_to == 20);
    CHECK(a.inbox.empty());
    CHECK(b.inbox.empty());
    CHECK(a.written == handshake::full_size + verdict_size);
  }
}

TEST_CASE("each side of an exchange learns the version, and the kind, of the other") {
  handshake other = raw(30);
  other.what = handshake::kind::stream;
  side a(raw(20)), b(other);
  run(a, b);
  CHECK(says(a.steps.result(), "the peer has a stream and this side a bare queue pair"));
  CHECK(says(b.steps.result(), "the peer has a bare queue pair and this side a stream"));
  side c(raw(20)), d(raw(30));
  handshake_bytes newer = encode(raw(30));
  set(newer, 4, 9);
  c.receive(newer);
  c.run(d);
  CHECK(says(c.steps.result(), "the peer has version 9 of the protocol and this side version 5"));
}

TEST_CASE("no side has finished well before the other has connected") {
  side a(raw(20)), b(raw(30));
  a.run(b);
  b.steps.on_written({}); // its record has been written, and a reads it
  a.receive(encode(raw(30)));
  a.run(b);
  CHECK(a.connected_to == 30);
  CHECK(a.steps.next() == action::read);
}

TEST_CASE("both sides learn that they do not fit") {
  struct row {
    const char* what;
    std::function<void(handshake&)> change;
  };
  const auto [what, change] = GENERATE(values<row>({
      {"type",
       [](handshake& h) {
         h.address->type = IBV_QPT_UC;
       }},
      {"kind",
       [](handshake& h) {
         h.what = handshake::kind::stream;
       }},
      {"multicast",
       [](handshake& h) {
         h.address->address.number = 0xffffff;
       }},
  }));
  INFO(what);
  handshake other = raw(30);
  change(other);
  side a(raw(20)), b(other);
  run(a, b);
  CHECK(a.steps.result() == error::incompatible_peer);
  CHECK(b.steps.result() == error::incompatible_peer);
  CHECK(!a.steps.connected());
}

TEST_CASE("a side that cannot be connected by hand notifies the other") {
  handshake none = raw(30);
  none.address.reset();
  SECTION("one") {
    side a(raw(20)), b(none, asio::error::operation_not_supported);
    run(a, b);
    CHECK(a.steps.result() == asio::error::operation_not_supported);
    CHECK(b.steps.result() == asio::error::operation_not_supported);
    CHECK(a.connected_to == 0);
  }
  SECTION("both, each with its own reason") {
    side a(none, error::no_gid), b(none, asio::error::operation_not_supported);
    run(a, b);
    CHECK(a.steps.result() == error::no_gid);
    CHECK(b.steps.result() == asio::error::operation_not_supported);
  }
}

TEST_CASE("a side that fails to connect notifies the other, which has connected") {
  side a(raw(20)), b(raw(30));
  b.connect_error = asio::error::invalid_argument;
  run(a, b);
  CHECK(a.steps.result() == error::rejected);
  CHECK(a.steps.connected());
  CHECK(b.steps.result() == asio::error::invalid_argument);
  CHECK(!b.steps.connected());
}

TEST_CASE("a peer of another protocol is answered and not waited for") {
  const std::string greeting = GENERATE("S", "SSH-2", "ARDV", "ARDM\x04", "ARDM\x06");
  side a(raw(20)), other(raw(30));
  a.run(other);
  for (const char c : greeting)
    a.inbox.push_back(static_cast<std::byte>(c));
  a.run(other);
  CHECK(a.steps.next() == action::finish);
  CHECK(a.steps.result() == error::incompatible_peer);
  CHECK(a.connected_to == 0);
  REQUIRE(other.inbox.size() == handshake::full_size + verdict_size);
  verdict v{};
  REQUIRE(!decode(std::span<const std::byte, verdict_size>(
                      other.inbox.data() + handshake::full_size, verdict_size),
                  v));
  CHECK(v == verdict::incompatible);
}

TEST_CASE("any wrong byte of the peer's record or verdict ends in an error or another address") {
  const handshake_bytes good_record = encode(raw(30));
  const auto good_verdict = encode(verdict::ready);
  for (std::size_t i = 0; i < handshake::full_size + verdict_size; ++i) {
    for (const unsigned flip : {0x01u, 0x10u, 0x80u, 0xffu}) {
      side a(raw(20)), other(raw(30));
      a.run(other);
      a.receive(good_record);
      a.inbox.insert(a.inbox.end(), good_verdict.begin(), good_verdict.end());
      a.inbox[i] ^= static_cast<std::byte>(flip);
      const bool of_record = i < handshake::full_size;
      a.run(other);
      INFO("byte " << i << " ^ " << flip);
      REQUIRE(a.steps.next() == action::finish);
      if (of_record)
        CHECK((a.steps.result() == error::incompatible_peer) != (a.connected_to != 0));
      else
        CHECK(a.steps.result());
    }
  }
}

TEST_CASE("an error of the stream ends the exchange in each step") {
  const error_code eof = asio::error::eof;
  const error_code pipe = asio::error::broken_pipe;
  side other(raw(30));
  side a(raw(20));
  SECTION("writing the record") {
    a.steps.on_written(pipe);
    CHECK(a.steps.result() == pipe);
    CHECK(!a.steps.connected());
  }
  SECTION("reading the record") {
    a.run(other);
    a.steps.on_read(eof, 0);
    CHECK(a.steps.result() == eof);
  }
  SECTION("in the middle of the record") {
    a.run(other);
    const handshake_bytes bytes = encode(raw(30));
    std::memcpy(a.steps.input().data(), bytes.data(), 30);
    a.steps.on_read({}, 30);
    CHECK(a.steps.next() == action::read);
    CHECK(a.steps.input().size() == handshake::full_size - 30);
    a.steps.on_read(eof, 0);
    CHECK(a.steps.result() == eof);
    CHECK(!a.steps.connected());
  }
  SECTION("writing the verdict") {
    a.run(other);
    std::memcpy(a.steps.input().data(), encode(raw(30)).data(), handshake::full_size);
    a.steps.on_read({}, handshake::full_size);
    REQUIRE(a.steps.next() == action::connect);
    a.steps.on_connected({});
    REQUIRE(a.steps.next() == action::write);
    a.steps.on_written(pipe);
    CHECK(a.steps.result() == pipe);
    CHECK(a.steps.connected());
  }
  SECTION("reading the verdict") {
    a.run(other);
    a.receive(encode(raw(30)));
    a.run(other);
    REQUIRE(a.steps.next() == action::read);
    a.steps.on_read(eof, 0);
    CHECK(a.steps.result() == eof);
    CHECK(a.steps.connected());
  }
  CHECK(a.steps.next() == action::finish);
}

TEST_CASE("a side's own error counts for more than that of the stream after it") {
  handshake none = raw(20);
  none.address.reset();
  side a(none, error::no_gid);
  a.steps.on_written(asio::error::broken_pipe);
  CHECK(a.steps.next() == action::finish);
  CHECK(a.steps.result() == error::no_gid);
}
