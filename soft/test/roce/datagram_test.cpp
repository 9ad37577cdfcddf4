// SPDX-License-Identifier: BSL-1.0
#include "roce/datagram.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

using namespace soft::roce;

namespace {

using bytes = std::vector<std::byte>;

datagram example(std::size_t payload, bool immediate = false) {
  datagram d;
  d.way.source.raw[0] = 0xfd;
  d.way.destination.raw[15] = 1;
  d.way.hop_limit = 1;
  d.from = 0x123456;
  d.to = 0xabcdef;
  d.q_key = 0x11223344;
  if (immediate)
    d.immediate = 0x55667788;
  d.payload = payload;
  return d;
}

// The whole datagram, with a payload of bytes 1, 2, 3, …
bytes whole(const datagram& d) {
  const datagram_frame f = encode(d);
  bytes all(f.before().begin(), f.before().end());
  for (std::size_t i = 0; i != d.payload; ++i)
    all.push_back(static_cast<std::byte>(i + 1));
  all.resize(all.size() + f.padding);
  return all;
}

std::optional<datagram> read(const bytes& all, bytes* payload = nullptr) {
  std::span<const std::byte> part;
  const auto d = decode(all, part);
  if (d && payload != nullptr)
    payload->assign(part.begin(), part.end());
  return d;
}

} // namespace

TEST_CASE("The transport headers are those of the InfiniBand specification") {
  datagram d = example(5, true);
  d.solicited = true;
  const bytes all = whole(d);
  constexpr unsigned char expected[24] = {0x65, 0xb0, 0xff, 0xff, 0,    0xab, 0xcd, 0xef,
                                          0,    0,    0,    0,    0x11, 0x22, 0x33, 0x44,
                                          0,    0x12, 0x34, 0x56, 0x88, 0x77, 0x66, 0x55};
  REQUIRE(all.size() == 40 + 24 + 5 + 3);
  CHECK(std::memcmp(all.data() + 40, expected, sizeof(expected)) == 0);
}

TEST_CASE("A datagram that was written is read") {
  const auto size = GENERATE(as<std::size_t>(), 0, 1, 2, 3, 4, 5, 4095, 4096, 32768);
  const bool immediate = GENERATE(false, true), solicited = GENERATE(false, true);
  datagram d = example(size, immediate);
  d.solicited = solicited;
  bytes payload;
  const auto r = read(whole(d), &payload);
  REQUIRE(r);
  CHECK(r->from == d.from);
  CHECK(r->to == d.to);
  CHECK(r->q_key == d.q_key);
  CHECK(r->solicited == solicited);
  CHECK(r->immediate == d.immediate);
  CHECK(r->payload == size);
  CHECK(payload.size() == size);
  for (std::size_t i = 0; i != payload.size(); ++i)
    if (payload[i] != static_cast<std::byte>(i + 1))
      FAIL(i);
}

TEST_CASE("A datagram of another length than its header says is refused") {
  const bytes right = whole(example(8, true));
  for (std::size_t size = 0; size != right.size() + 64; ++size) {
    bytes changed = right;
    changed.resize(size);
    INFO(size);
    CHECK(read(changed).has_value() == (size == right.size()));
  }
}

TEST_CASE("Each wrong bit of a datagram's headers is refused, or changes one field") {
  const bytes right = whole(example(6));
  const auto flipped = [&](std::size_t byte, unsigned bit) {
    bytes changed = right;
    changed[byte] ^= static_cast<std::byte>(1u << bit);
    return read(changed);
  };
  // Opcode, partition and reserved fields. The other opcode has 4 bytes more.
  for (const std::size_t byte : {40u, 42u, 43u, 44u, 48u, 56u})
    for (unsigned bit = 0; bit != 8; ++bit) {
      if (byte == 40 && bit == 0)
        continue;
      INFO(byte << ' ' << bit);
      CHECK_FALSE(flipped(byte, bit));
    }
  for (const unsigned reserved : {0u, 1u, 2u, 3u, 6u}) // of the flags
    CHECK_FALSE(flipped(41, reserved));
  CHECK(flipped(41, 7)->solicited);
  for (const std::size_t padding : {right.size() - 1, right.size() - 2})
    CHECK_FALSE(flipped(padding, 3));
  for (const std::size_t byte : {45u, 46u, 47u})
    CHECK(flipped(byte, 3)->to == (0xabcdefu ^ 8u << 8 * (47 - byte)));
  for (const std::size_t byte : {57u, 58u, 59u})
    CHECK(flipped(byte, 3)->from == (0x123456u ^ 8u << 8 * (59 - byte)));
  for (const std::size_t byte : {52u, 53u, 54u, 55u})
    CHECK(flipped(byte, 3)->q_key == (0x11223344u ^ 8u << 8 * (55 - byte)));
}

TEST_CASE("A datagram without room for its immediate data or its padding is refused") {
  bytes b = whole(example(0));
  b[40] = std::byte{0x65};
  CHECK_FALSE(read(b));
  b[40] = std::byte{0x64};
  CHECK(read(b));
  b[41] = std::byte{0x10};
  CHECK_FALSE(read(b));
}

TEST_CASE("Of bytes that are changed at random a datagram stays within the bytes, or is refused") {
  std::minstd_rand random(7);
  std::size_t taken = 0;
  for (int round = 0; round != 20000; ++round) {
    bytes b = whole(example(random() % 40, random() % 2 == 0));
    for (unsigned n = random() % 4; n != 0; --n)
      b[random() % b.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0)
      b.resize(random() % (b.size() + 8));
    b.shrink_to_fit(); // a sanitizer sees what is read behind
    std::span<const std::byte> payload;
    const auto d = decode(b, payload);
    if (!d)
      continue;
    ++taken;
    REQUIRE(d->payload == payload.size());
    REQUIRE(payload.data() >= b.data() + min_datagram_header);
    REQUIRE(payload.data() + payload.size() <= b.data() + b.size());
    REQUIRE(d->to <= 0xffffff);
    REQUIRE(d->from <= 0xffffff);
  }
  CHECK(taken > 1000);
}
