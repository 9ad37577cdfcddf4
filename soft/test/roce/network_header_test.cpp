// SPDX-License-Identifier: BSL-1.0
#include "roce/network_header.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>

using namespace soft::roce;

namespace {

ibv_gid gid(const char* address) {
  ibv_gid g{};
  inet_pton(AF_INET6, address, g.raw); // or zero: no example then holds
  return g;
}

bool is_same(const ibv_gid& a, const ibv_gid& b) { return std::memcmp(a.raw, b.raw, 16) == 0; }

route example(const char* source, const char* destination) {
  return {.source = gid(source),
          .destination = gid(destination),
          .traffic_class = 0x2a,
          .hop_limit = 64,
          .flow_label = 0x54321,
          .bytes = 0x1234};
}

const route ipv4 = example("::ffff:192.0.2.1", "::ffff:127.0.0.1"),
            ipv6 = example("fd00::2", "::1");

network_header flipped(network_header h, std::size_t bit) {
  h[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  return h;
}

} // namespace

TEST_CASE("An IPv4 header lies in the last 20 bytes") {
  const network_header h = encode(ipv4);
  // The checksum was computed by hand: the ones' complement of the sum 45 2a + 12 48 + 40 00 + 40
  // 11
  // + c0 00 + 02 01 + 7f 00 + 00 01.
  constexpr unsigned char expected[20] = {0x45, 0x2a, 0x12, 0x48, 0x00, 0x00, 0x40,
                                          0x00, 0x40, 0x11, 0xe7, 0x78, 192,  0,
                                          2,    1,    127,  0,    0,    1};
  CHECK(std::memcmp(h.data() + 20, expected, 20) == 0);
  CHECK(h[0] == std::byte{0});
  CHECK(std::memcmp(h.data(), h.data() + 1, 19) == 0);
}

TEST_CASE("An IPv6 header takes all 40 bytes") {
  const network_header h = encode(ipv6);
  constexpr unsigned char expected[8] = {0x62, 0xa5, 0x43, 0x21, 0x12, 0x34, 17, 64};
  CHECK(std::memcmp(h.data(), expected, 8) == 0);
  CHECK(std::memcmp(h.data() + 8, ipv6.source.raw, 16) == 0);
  CHECK(std::memcmp(h.data() + 24, ipv6.destination.raw, 16) == 0);
}

TEST_CASE("A header that was written is read") {
  const bool is_v6 = GENERATE(false, true);
  const route& r = is_v6 ? ipv6 : ipv4;
  const auto read = decode(encode(r));
  REQUIRE(read);
  CHECK(is_same(read->source, r.source));
  CHECK(is_same(read->destination, r.destination));
  CHECK(read->traffic_class == r.traffic_class);
  CHECK(read->hop_limit == r.hop_limit);
  CHECK(read->bytes == r.bytes);
  CHECK(read->flow_label == (is_v6 ? r.flow_label : 0));
}

TEST_CASE("An IPv4 header with a wrong bit is refused") {
  const network_header right = encode(ipv4);
  for (std::size_t bit = 0; bit != 8 * right.size(); ++bit) {
    INFO(bit);
    CHECK_FALSE(decode(flipped(right, bit)));
  }
}

TEST_CASE("An IPv6 header of another version or protocol is refused") {
  const network_header right = encode(ipv6);
  for (const std::size_t bit : {4u, 5u, 6u, 7u, 48u, 49u, 50u, 51u, 52u, 53u, 54u, 55u}) {
    INFO(bit);
    CHECK_FALSE(decode(flipped(right, bit)));
  }
}

TEST_CASE("An address that no single host has is refused") {
  for (const char* const address :
       {"::ffff:0.0.0.0", "::ffff:0.1.2.3", "::ffff:224.0.0.1", "::ffff:255.255.255.255"}) {
    INFO(address);
    CHECK_FALSE(decode(encode(example(address, "::ffff:127.0.0.1"))));
    CHECK_FALSE(decode(encode(example("::ffff:127.0.0.1", address))));
  }
  for (const char* const address : {"::", "ff02::1"}) {
    INFO(address);
    CHECK_FALSE(decode(encode(example(address, "::1"))));
    CHECK_FALSE(decode(encode(example("::1", address))));
  }
  CHECK_FALSE(decode(encode(example("::ffff:127.0.0.1", "::1"))));
}
