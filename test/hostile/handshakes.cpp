// SPDX-License-Identifier: BSL-1.0
// Connection requests whose private data are no handshake of this version.
#include "hostile/siege.hpp"

#include <algorithm>
#include <deque>
#include <utility>

namespace test::handshakes_tests {
namespace {

using kind = detail::handshake::kind;

byte_vector record(const bare_peer& p, kind what) {
  const detail::handshake h = p.hello(what);
  const auto bytes = encode(h);
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(h.size())};
}

std::uint32_t port_of(siege& s, kind what) {
  return what == kind::stream ? s.report()->bytes_port : s.report()->messages_port;
}

/// Requests with this record. If the victim accepts it, the peer sends a frame.
bool accepted(bare_peer& p, const byte_vector& bytes) {
  return p.connect(bytes_view(bytes)) && p.send(detail::frame_header{});
}

} // namespace

TEST_CASE("handshake: each field at its limits") {
  siege s;
  struct field {
    std::size_t at, bytes;
  };
  // magic, version, kind, flags, receives, receive size, reads, atomics, promise, zeros
  constexpr field fields[] = {{0, 4},  {4, 1},  {5, 1},  {6, 2},  {8, 4},
                              {12, 4}, {16, 1}, {17, 1}, {18, 2}, {20, 4}};
  for (const kind what : {kind::message, kind::stream})
    for (const field& f : fields)
      for (const std::uint64_t value :
           {std::uint64_t(0), std::uint64_t(1), std::uint64_t(detail::handshake::version + 1),
            std::uint64_t(0x7fffffff), ~std::uint64_t(0)}) {
        CAPTURE(int(what), f.at, value);
        bare_peer p(port_of(s, what));
        byte_vector bytes = record(p, what);
        for (std::size_t i = 0; i < f.bytes; ++i)
          bytes[f.at + i] = static_cast<std::byte>(value >> 8 * i & 0xff);
        const bool is_accepted = accepted(p, bytes);
        if (f.at < detail::handshake::prefix_size)
          CHECK_FALSE(is_accepted);
      }
  s.check();
}

TEST_CASE("handshake: each length") {
  siege s;
  // Private data are padded with zeros on InfiniBand and RoCE, and their length is exact on iWARP.
  for (std::size_t length = 0; length <= detail::handshake::full_size; ++length) {
    bare_peer p(s.report()->messages_port);
    byte_vector bytes = record(p, kind::message);
    bytes.resize(length, std::byte(0));
    CAPTURE(length);
    const bool is_accepted = accepted(p, bytes);
    if (length < detail::handshake::prefix_size)
      CHECK_FALSE(is_accepted);
  }
  s.check();
}

TEST_CASE("handshake: no record gets past a program that admits none") {
  siege s;
  std::mt19937 random = seeded(8);
  for (const bool with_address : {false, true})
    for (std::size_t i = 0; i < repetitions(20); ++i) {
      bare_peer p(s.report()->admitted_port);
      detail::handshake h = p.hello(kind::message);
      if (with_address) {
        h.address.emplace();
        h.address->address.number = 2 + below(random, 0xfffff0);
        h.address->address.packet_number = below(random, 0xffffff);
        h.address->address.lid = static_cast<std::uint16_t>(1 + below(random, 0xffff));
        h.address->address.mtu = static_cast<ibv_mtu>(IBV_MTU_256 + below(random, 5));
      }
      const auto record = encode(h);
      byte_vector bytes(record.begin(), record.begin() + static_cast<std::ptrdiff_t>(h.size()));
      if (i % 4 == 3)
        bytes[below(random, bytes.size())] ^= static_cast<std::byte>(1U << below(random, 8));
      CHECK_FALSE(accepted(p, bytes));
    }
  s.check();
}

TEST_CASE("handshake: many requests of another version at a time") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = repetitions(40); i != 0; --i) {
      const kind what = i % 2 == 0 ? kind::message : kind::stream;
      bare_peer& p = peers.emplace_back(port_of(s, what), bare_peer::shape::small());
      byte_vector bytes = record(p, what);
      bytes[4] ^= std::byte(0xff);
      p.request(bytes);
    }
    s.served();
  }
  s.check();
}

TEST_CASE("handshake: random bytes are changed") {
  siege s;
  std::mt19937 random = seeded(1);
  for (std::size_t i = repetitions(60); i != 0; --i) {
    const kind what = below(random, 2) == 0 ? kind::message : kind::stream;
    bare_peer p(port_of(s, what));
    byte_vector bytes = record(p, what);
    bytes.resize(below(random, 4) == 0 ? below(random, 57) : bytes.size());
    for (std::size_t n = 1 + below(random, 3); n != 0 && !bytes.empty(); --n)
      bytes[below(random, bytes.size())] ^= static_cast<std::byte>(1U << below(random, 8));
    accepted(p, bytes);
  }
  s.check();
}

} // namespace test::handshakes_tests
