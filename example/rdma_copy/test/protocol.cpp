// SPDX-License-Identifier: BSL-1.0
#include "../protocol.hpp"

#include "catch.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace protocol;

std::vector<std::byte> encoded(const message& m) {
  std::array<std::byte, max_message_size> to{};
  const std::size_t size = encode(m, to);
  return {to.begin(), to.begin() + static_cast<std::ptrdiff_t>(size)};
}

sha256 a_hash() {
  sha256 h{};
  for (std::size_t i = 0; i < h.size(); ++i)
    h[i] = static_cast<std::byte>(i * 7 + 1);
  return h;
}

std::vector<message> all() {
  return {offer{123456789012, 65536, 8, "a file"},
          ready{0x0000700012345000, 0xabcdef01, 65536, 8},
          filled{3, 65536},
          emptied{63},
          finish{a_hash()},
          storing{},
          stored{a_hash()},
          failed{reason::no_space}};
}

} // namespace

TEST_CASE("a message comes back as it was") {
  for (const message& m : all()) {
    const auto bytes = encoded(m);
    CHECK(bytes.size() <= max_message_size);
    const auto back = decode(bytes);
    REQUIRE(back);
    CHECK(back->index() == m.index());
    CHECK(encoded(*back) == bytes);
  }
}

TEST_CASE("messages have the documented layout") {
  const unsigned char expected[] = {'R', 'D', 'C', 'P', 2, 2, 16, 0, 3, 0, 0, 0, 0, 0, 1, 0};
  const auto bytes = encoded(filled{3, 65536});
  REQUIRE(bytes.size() == sizeof(expected));
  CHECK(std::memcmp(bytes.data(), expected, sizeof(expected)) == 0);
}

TEST_CASE("no byte of a message is overlooked") {
  // Each wrong byte is either refused or changes what is decoded.
  for (const message& m : all()) {
    const auto good = encoded(m);
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (unsigned value = 0; value < 256; ++value) {
        auto bad = good;
        bad[i] = static_cast<std::byte>(value);
        const auto back = decode(bad);
        if (back && encoded(*back) != bad)
          FAIL("type " << m.index() << ", byte " << i << " = " << value << " was overlooked");
      }
    }
  }
  SUCCEED();
}

TEST_CASE("a message of another length is refused") {
  for (const message& m : all()) {
    auto bytes = encoded(m);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      CHECK(!decode(std::span(bytes).first(n)));
    bytes.push_back(std::byte());
    CHECK(!decode(bytes));
    bytes[6] = static_cast<std::byte>(bytes.size()); // even if its header has that length
    bytes[7] = static_cast<std::byte>(bytes.size() >> 8);
    CHECK(!decode(bytes));
  }
}

TEST_CASE("a message with values out of range is refused") {
  const message m = GENERATE(values<message>({
      offer{std::uint64_t(1) << 63, 65536, 8, "a"},
      offer{1, min_chunk - 1, 8, "a"},
      offer{1, max_chunk + 1, 8, "a"},
      offer{1, 65536, 0, "a"},
      offer{1, 65536, max_window + 1, "a"},
      offer{1, 65536, 8, ""},
      offer{1, 65536, 8, "."},
      offer{1, 65536, 8, ".."},
      offer{1, 65536, 8, "../a"},
      offer{1, 65536, 8, "/a"},
      offer{1, 65536, 8, "a/b"},
      offer{1, 65536, 8, "a\nb"},
      offer{1, 65536, 8, "a\x1b[2J"},
      offer{1, 65536, 8, std::string("a\0b", 3)},
      ready{0, 1, 65536, 8},
      ready{~std::uint64_t(0) - 8 * 65536 + 1, 1, 65536, 8},
      ready{4096, 1, 0, 8},
      ready{4096, 1, 65536, max_window + 1},
      filled{max_window, 1},
      filled{0, 0},
      filled{0, max_chunk + 1},
      emptied{max_window},
      failed{static_cast<reason>(static_cast<unsigned>(reason::last) + 1)},
  }));
  CHECK(!decode(encoded(m)));
}

TEST_CASE("every reason has words of its own") {
  std::vector<std::string> seen;
  for (unsigned r = 0; r <= static_cast<unsigned>(reason::last); ++r) {
    const std::string words = to_string(static_cast<reason>(r));
    CHECK(std::find(seen.begin(), seen.end(), words) == seen.end());
    seen.push_back(words);
  }
}
