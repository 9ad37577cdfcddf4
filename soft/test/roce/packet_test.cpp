// SPDX-License-Identifier: BSL-1.0
// Packets of other machines.
#include "roce/datagram.hpp"
#include "roce/invariant_crc.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

using namespace soft::roce;

namespace {

using bytes = std::vector<std::byte>;
constexpr std::uint16_t source_port = 0xc123;

ibv_gid gid(const char* address) {
  ibv_gid g{};
  inet_pton(AF_INET6, address, g.raw);
  return g;
}

// 192.0.2.2, 192.0.2.3 and fd00::2 are addresses of this machine.
bool is_own(const ibv_gid& g) {
  for (const char* const own : {"::ffff:192.0.2.2", "::ffff:192.0.2.3", "fd00::2"})
    if (std::memcmp(gid(own).raw, g.raw, sizeof(g.raw)) == 0)
      return true;
  return false;
}

datagram example(bool v6) {
  datagram d;
  d.way.source = gid(v6 ? "fd00::1" : "::ffff:192.0.2.1");
  d.way.destination = gid(v6 ? "fd00::2" : "::ffff:192.0.2.2");
  d.way.traffic_class = 0x2a;
  d.way.hop_limit = 7;
  d.from = 0x123456;
  d.to = 0xabcdef;
  d.q_key = 0x11223344;
  d.immediate = 0x55667788;
  d.solicited = true;
  d.payload = 6;
  return d;
}

void put_crc(bytes& packet) {
  const std::size_t covered = packet.size() - invariant_crc::size;
  const std::span<const std::byte> all(packet);
  invariant_crc crc(all.first<52>(), source_port);
  crc.update(all.subspan(52, covered - 52));
  std::ranges::copy(crc.encode(), packet.begin() + static_cast<std::ptrdiff_t>(covered));
}

// The bytes that UDP brings, behind the network header, which gives the right CRC.
bytes packet_of(const datagram& d) {
  const datagram_frame f = encode(d);
  bytes all(f.before().begin(), f.before().end());
  for (std::size_t i = 0; i != d.payload; ++i)
    all.push_back(static_cast<std::byte>(i + 1));
  all.resize(all.size() + f.padding + invariant_crc::size);
  put_crc(all);
  return all;
}

// `packet` becomes what another process of this machine gets.
std::optional<datagram> read(bytes& packet, const route& way, bytes* payload = nullptr) {
  route without_bytes = way;
  without_bytes.bytes = 0;
  std::fill_n(packet.begin(), std::min<std::size_t>(packet.size(), 40), std::byte{0xee}); // room
  std::span<const std::byte> part;
  const auto d = decode_packet(without_bytes, source_port, packet, is_own, part);
  if (d && payload != nullptr)
    payload->assign(part.begin(), part.end());
  return d;
}
bool is_taken(bytes packet, const route& way) { return read(packet, way).has_value(); }

} // namespace

TEST_CASE("A packet of another machine is read, and becomes a datagram between processes") {
  const bool v6 = GENERATE(false, true);
  const datagram d = example(v6);
  bytes packet = packet_of(d), payload;
  const bytes sent = packet;
  const auto r = read(packet, d.way, &payload);
  REQUIRE(r);
  CHECK(r->from == d.from);
  CHECK(r->to == d.to);
  CHECK(r->q_key == d.q_key);
  CHECK(r->immediate == d.immediate);
  CHECK(r->solicited);
  CHECK(r->way.traffic_class == 0x2a);
  CHECK(r->way.hop_limit == 7);
  CHECK(std::memcmp(r->way.source.raw, d.way.source.raw, 16) == 0);
  CHECK(payload == bytes({std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5},
                          std::byte{6}}));
  CHECK(packet == sent);
  packet.resize(packet.size() - invariant_crc::size);
  std::span<const std::byte> part;
  CHECK(decode(packet, part));
}

TEST_CASE("A packet that claims to come from this machine, or is not for it, is refused") {
  const bool v6 = GENERATE(false, true);
  datagram d = example(v6);
  CHECK(is_taken(packet_of(d), d.way));
  d.way.source = v6 ? d.way.destination : gid("::ffff:192.0.2.3");
  CHECK_FALSE(is_taken(packet_of(d), d.way));
  d = example(v6);
  d.way.destination = gid(v6 ? "fd00::3" : "::ffff:192.0.2.255");
  CHECK_FALSE(is_taken(packet_of(d), d.way));
  d = example(v6);
  d.way.source = gid(v6 ? "ff02::1" : "::ffff:224.0.0.1");
  CHECK_FALSE(is_taken(packet_of(d), d.way));
}

TEST_CASE("A packet of another length is refused") {
  const datagram d = example(false);
  const bytes right = packet_of(d);
  for (std::size_t size = 0; size != right.size(); ++size) {
    if (size == right.size() - 4) // has the payload's last bytes in place of the CRC
      continue;
    INFO(size);
    CHECK_FALSE(
        is_taken({right.begin(), right.begin() + static_cast<std::ptrdiff_t>(size)}, d.way));
  }
  datagram longest = d;
  longest.immediate.reset();
  longest.payload = max_datagram_payload;
  CHECK(is_taken(packet_of(longest), d.way));
  for (const std::size_t size :
       {max_datagram_payload + 100, std::size_t{65534}, std::size_t{65536}}) {
    bytes too_long = packet_of(longest);
    too_long.resize(size);
    CHECK_FALSE(is_taken(too_long, d.way));
  }
}

TEST_CASE("A packet of another operation is refused") {
  const datagram d = example(false);
  for (unsigned opcode = 0; opcode != 256; ++opcode) {
    bytes packet = packet_of(d);
    packet[40] = static_cast<std::byte>(opcode);
    INFO(opcode);
    CHECK(is_taken(packet, d.way) == (opcode == 0x64 || opcode == 0x65));
  }
}

TEST_CASE("Over IPv6 a packet with a wrong bit is refused") {
  const datagram d = example(true);
  const bytes right = packet_of(d);
  for (std::size_t at = 40; at != right.size(); ++at) {
    if (at == 44) // the CRC does not cover it
      continue;
    for (unsigned bit = 0; bit != 8; ++bit) {
      bytes changed = right;
      changed[at] ^= static_cast<std::byte>(1u << bit);
      INFO(at << ' ' << bit);
      CHECK_FALSE(is_taken(changed, d.way));
    }
  }
  datagram moved = d;
  moved.way.source = gid("fd00::5");
  CHECK_FALSE(is_taken(right, moved.way));
}

TEST_CASE("Bits that a receiver ignores are cleared") {
  const bool v6 = GENERATE(false, true);
  const datagram d = example(v6);
  const bytes right = packet_of(d);
  bytes changed = right;
  changed[41] |= std::byte{0x40}; // migration
  changed[42] = std::byte{0x7f};  // limited member of the partition
  changed[44] = std::byte{0xc0};  // congestion
  changed[48] = std::byte{0x80};  // acknowledge request
  changed[56] = std::byte{0xff};  // reserved
  put_crc(changed);
  REQUIRE(read(changed, d.way));
  CHECK(std::equal(right.begin(), right.end() - invariant_crc::size, changed.begin()));
  changed = right;
  changed[42] = std::byte{0x7e}; // another partition
  put_crc(changed);
  CHECK_FALSE(is_taken(changed, d.way));
  changed = right;
  changed[41] |= std::byte{1}; // another version of the transport
  put_crc(changed);
  CHECK_FALSE(is_taken(changed, d.way));
}
