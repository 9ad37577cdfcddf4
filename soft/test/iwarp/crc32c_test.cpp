// SPDX-License-Identifier: BSL-1.0
#include "iwarp/crc32c.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

#include <numeric>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

std::uint32_t crc_of(std::span<const std::byte> data) {
  crc32c c;
  c.update(data);
  return c.value();
}

bytes counting(std::size_t size, int first, int step) {
  bytes result(size);
  for (std::size_t i = 0; i != size; ++i)
    result[i] = static_cast<std::byte>((first + step * static_cast<int>(i)) & 0xff);
  return result;
}

} // namespace

TEST_CASE("CRC32c has the values of RFC 3720, appendix B.4") {
  CHECK(crc_of(bytes(32, std::byte{0})) == 0x8a9136aa);
  CHECK(crc_of(bytes(32, std::byte{0xff})) == 0x62a8ab43);
  CHECK(crc_of(counting(32, 0, 1)) == 0x46dd794e);
  CHECK(crc_of(counting(32, 31, -1)) == 0x113fdb5c);
  // The SCSI read command of the appendix.
  CHECK(crc_of(hex("01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018"
                   "28000000 00000000 02000000 00000000")) == 0xd9963a56);
}

TEST_CASE("CRC32c of the digits 1 to 9 is the check value e3069283") {
  CHECK(crc_of(hex("31 32 33 34 35 36 37 38 39")) == 0xe3069283);
}

TEST_CASE("CRC32c of no bytes is 0") { CHECK(crc_of({}) == 0); }

TEST_CASE("CRC32c is encoded with the least significant byte first, as in RFC 3720") {
  crc32c c;
  c.update(bytes(32, std::byte{0}));
  bytes encoded(crc32c::size);
  c.encode(encoded.data());
  CHECK(to_hex(encoded) == "aa36918a");
  CHECK(c.matches(encoded.data()));
  encoded[3] ^= std::byte{0x80};
  CHECK_FALSE(c.matches(encoded.data()));
}

TEST_CASE("CRC32c does not depend on how the bytes are cut, nor on their alignment") {
  const bytes data = pattern(1000, 1);
  random_engine random(2);
  for (int round = 0; round != 200; ++round) {
    const std::size_t from = number(random, 0, 20);
    const auto part = std::span(data).subspan(from);
    crc32c whole;
    whole.update(part);
    crc32c cut;
    for (std::size_t at = 0; at != part.size();) {
      const std::size_t n = std::min<std::size_t>(number(random, 0, 50), part.size() - at);
      cut.update(part.subspan(at, n));
      at += n;
    }
    REQUIRE(cut.value() == whole.value());
    cut.reset();
    cut.update(part);
    REQUIRE(cut.value() == whole.value());
  }
}

TEST_CASE("CRC32c by table and by instruction agree for all lengths up to 300") {
  if (!detail::crc32c_has_instruction())
    return;
  const bytes data = pattern(400, 3);
  for (std::size_t size = 0; size <= 300; ++size) {
    const auto part = std::span(data).subspan(size % 9, size);
    REQUIRE(detail::crc32c_by_table(0xffffffff, part) ==
            detail::crc32c_by_instruction(0xffffffff, part));
  }
}
