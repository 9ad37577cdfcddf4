// SPDX-License-Identifier: BSL-1.0
#include "roce/service_resolution.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <utility>
#include <vector>

using namespace soft::roce;

namespace {

ibv_gid address(bool v6, std::uint8_t last) {
  ibv_gid g{};
  if (v6) {
    g.raw[0] = 0xfd;
  } else {
    g.raw[10] = g.raw[11] = 0xff;
    g.raw[12] = 192;
  }
  g.raw[15] = last;
  return g;
}

resolution_request request(bool v6) {
  resolution_request r;
  r.transaction = 0x0102030405060708;
  r.id = 0x11121314;
  r.service = service_of(0x2122);
  r.source_port = 0x3132;
  r.source = address(v6, 1);
  r.destination = address(v6, 2);
  r.data.front() = std::byte{0x41};
  r.data.back() = std::byte{0x42};
  return r;
}

resolution_reply reply() {
  resolution_reply r;
  r.transaction = 0x0102030405060708;
  r.id = 0x11121314;
  r.service = service_of(0x2122);
  r.status = 2;
  r.qp_num = 0x515253;
  r.q_key = 0x61626364;
  r.data.front() = std::byte{0x41};
  r.data.back() = std::byte{0x42};
  return r;
}

void check(const resolution_message& m, std::size_t at, std::initializer_list<unsigned> expected) {
  for (const unsigned byte : expected) {
    INFO(at);
    CHECK(std::to_integer<unsigned>(m[at++]) == byte);
  }
}

} // namespace

TEST_CASE("A request has the format of the InfiniBand specification") {
  const resolution_message m = encode(request(false));
  check(m, 0, {1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x17, 0, 0, 0, 0, 0, 0});
  check(m, 24, {0x11, 0x12, 0x13, 0x14, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0x11, 0x21, 0x22});
  check(m, 40, {0, 0x40, 0x31, 0x32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 0, 1});
  check(m, 72, {192, 0, 0, 2, 0x41});
  check(m, 255, {0x42});
  check(encode(request(true)), 40, {0, 0x60, 0x31, 0x32, 0xfd});
}

TEST_CASE("A reply has the format of the InfiniBand specification") {
  const resolution_message m = encode(reply());
  check(m, 16, {0, 0x18, 0, 0, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 2, 0, 0, 0});
  check(m, 32, {0x51, 0x52, 0x53, 0, 0, 0, 0, 0, 1, 0x11, 0x21, 0x22, 0x61, 0x62, 0x63, 0x64, 0});
  check(m, 120, {0x41});
  check(m, 255, {0x42});
}

TEST_CASE("A request or reply that was written is read, and not taken for the other") {
  const bool v6 = GENERATE(false, true);
  const resolution_request q = request(v6);
  const auto asked = decode_request(encode(q));
  REQUIRE(asked);
  CHECK(asked->transaction == q.transaction);
  CHECK(asked->id == q.id);
  CHECK(asked->service == q.service);
  CHECK(asked->source_port == q.source_port);
  CHECK(std::memcmp(asked->source.raw, q.source.raw, 16) == 0);
  CHECK(std::memcmp(asked->destination.raw, q.destination.raw, 16) == 0);
  CHECK(asked->data == q.data);
  CHECK_FALSE(decode_reply(encode(q)));
  const resolution_reply r = reply();
  const auto answered = decode_reply(encode(r));
  REQUIRE(answered);
  CHECK(answered->transaction == r.transaction);
  CHECK(answered->id == r.id);
  CHECK(answered->service == r.service);
  CHECK(answered->status == r.status);
  CHECK(answered->qp_num == r.qp_num);
  CHECK(answered->q_key == r.q_key);
  CHECK(answered->data == r.data);
  CHECK_FALSE(decode_request(encode(r)));
}

TEST_CASE("Each wrong bit of a reserved field is refused") {
  const auto flipped = [](resolution_message m, std::size_t byte, unsigned bit) {
    m[byte] ^= static_cast<std::byte>(1u << bit);
    return m;
  };
  const auto is_free = [](std::size_t byte, std::initializer_list<std::pair<int, int>> fields) {
    for (const auto& [first, last] : fields)
      if (byte >= static_cast<std::size_t>(first) && byte < static_cast<std::size_t>(last))
        return true;
    return false;
  };
  const resolution_message q = encode(request(false)), r = encode(reply());
  for (std::size_t byte = 0; byte != resolution_size; ++byte)
    for (unsigned bit = 0; bit != 8; ++bit) {
      INFO(byte << ' ' << bit);
      if (byte == 41 && bit == 5) // the addresses are of IPv6 then
        continue;
      // Transaction, id, service, port, both addresses, data.
      CHECK(decode_request(flipped(q, byte, bit)).has_value() ==
            is_free(byte, {{8, 16}, {24, 28}, {32, 40}, {42, 44}, {56, 60}, {72, 256}}));
      if (byte != 28) // the status
        CHECK(decode_reply(flipped(r, byte, bit)).has_value() ==
              is_free(byte, {{8, 16}, {24, 28}, {32, 35}, {36, 48}, {120, 256}}));
    }
  resolution_message m = r;
  m[28] = std::byte{most_resolution_status + 1};
  CHECK_FALSE(decode_reply(m));
}

TEST_CASE("A message of another size is refused") {
  const resolution_message q = encode(request(true));
  std::vector<std::byte> bytes(q.begin(), q.end());
  for (std::size_t size = 0; size != bytes.size(); ++size) {
    const std::vector<std::byte> part(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_FALSE(decode_request(part));
    CHECK_FALSE(decode_reply(part));
  }
  bytes.push_back(std::byte{0});
  CHECK_FALSE(decode_request(bytes));
}
