// SPDX-License-Identifier: BSL-1.0
#include "roce/invariant_crc.hpp"

#include "roce/datagram.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

using namespace soft::roce;

namespace {

using bytes = std::vector<std::byte>;

bytes made_of(std::initializer_list<unsigned> values) {
  bytes b;
  for (const unsigned v : values)
    b.push_back(static_cast<std::byte>(v));
  return b;
}

// CRC-32 of Ethernet, bit by bit.
std::array<std::byte, 4> crc_of(const bytes& all) {
  std::uint32_t state = 0xffffffff;
  for (const std::byte b : all)
    for (unsigned bit = 0; bit != 8; ++bit) {
      const bool one = ((state ^ (std::to_integer<std::uint32_t>(b) >> bit)) & 1) != 0;
      state = (state >> 1) ^ (one ? 0xedb88320 : 0);
    }
  std::array<std::byte, 4> result;
  for (unsigned i = 0; i != 4; ++i)
    result[i] = static_cast<std::byte>(~state >> 8 * i);
  return result;
}

datagram example(const char* source, const char* destination) {
  datagram d;
  inet_pton(AF_INET6, source, d.way.source.raw);
  inet_pton(AF_INET6, destination, d.way.destination.raw);
  d.way.traffic_class = 0x2a;
  d.way.hop_limit = 64;
  d.way.flow_label = 0x54321;
  d.from = 0x123456;
  d.to = 0xabcdef;
  d.q_key = 0x11223344;
  d.payload = 8;
  return d;
}
const datagram ipv4 = example("::ffff:192.0.2.1", "::ffff:192.0.2.2"),
               ipv6 = example("fd00::1", "fd00::2");
constexpr std::uint16_t source_port = 0xc123;

std::array<std::byte, 4> invariant_crc_of(const bytes& headers, const bytes& rest,
                                          std::uint16_t port = source_port) {
  invariant_crc crc(std::span<const std::byte>(headers).first<52>(), port);
  crc.update(std::span<const std::byte>(headers).subspan(52));
  crc.update(rest);
  return crc.encode();
}

bytes headers_of(const datagram& d) {
  const datagram_frame f = encode(d);
  return {f.before().begin(), f.before().end()};
}

} // namespace

// A congestion notification of a ConnectX-4 Lx, captured on the wire: test/contrib/roce.uts of
// Scapy has these bytes.
TEST_CASE("The invariant CRC is that of an adapter") {
  bytes headers(20);
  for (const std::byte b :
       made_of({0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61,
                0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01, // the network header
                0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0,    0,    0,    0}))
    headers.push_back(b);
  const auto crc = invariant_crc_of(headers, bytes(16), 0);
  CHECK(bytes(crc.begin(), crc.end()) == made_of({0x82, 0xfd, 0x00, 0x2a}));
}

TEST_CASE("The invariant CRC covers a packet whose changing fields are ones") {
  const bytes payload = made_of({1, 2, 3, 4, 5, 6, 7, 8});
  const bool v6 = GENERATE(false, true);
  const bytes headers = headers_of(v6 ? ipv6 : ipv4);
  bytes all(8, std::byte{0xff});
  all.insert(all.end(), headers.begin() + (v6 ? 0 : 20), headers.begin() + 40);
  for (const std::byte b : made_of({0xc1, 0x23, 0x12, 0xb7, 0, 8 + 20 + 8 + 4, 0xff, 0xff}))
    all.push_back(b); // the UDP header
  all.insert(all.end(), headers.begin() + 40, headers.end());
  all.insert(all.end(), payload.begin(), payload.end());
  for (const std::size_t at : {1u, 8u, 10u, 11u})
    if (!v6)
      all[8 + at] = std::byte{0xff};
  for (const std::size_t at : {1u, 2u, 3u, 7u})
    if (v6)
      all[8 + at] = std::byte{0xff};
  if (v6)
    all[8] = std::byte{0x6f};
  all[8 + (v6 ? 40 : 20) + 8 + 4] = std::byte{0xff};
  CHECK(invariant_crc_of(headers, payload) == crc_of(all));
}

TEST_CASE("The invariant CRC changes with each bit that routers do not change") {
  const bool v6 = GENERATE(false, true);
  const bytes right = headers_of(v6 ? ipv6 : ipv4), payload(8);
  const auto crc = invariant_crc_of(right, payload);
  CHECK(invariant_crc_of(right, payload, source_port ^ 1) != crc);
  const auto is_free = [&](std::size_t at, unsigned bit) {
    if (at == 44) // reserved
      return true;
    if (v6)
      return (at == 0 && bit < 4) || (at >= 1 && at <= 3) || at == 7;
    return at == 21 || at == 28 || at == 30 || at == 31;
  };
  for (std::size_t at = v6 ? 0 : 20; at != right.size(); ++at)
    for (unsigned bit = 0; bit != 8; ++bit) {
      bytes changed = right;
      changed[at] ^= static_cast<std::byte>(1u << bit);
      INFO(at << ' ' << bit);
      CHECK((invariant_crc_of(changed, payload) == crc) == is_free(at, bit));
    }
}
