// SPDX-License-Identifier: BSL-1.0
#include "fuzz_roce.hpp"

#include "roce/datagram.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

using namespace soft::roce;
using namespace soft::roce::test;

namespace {

constexpr int rounds = 20000;
using input = std::vector<std::uint8_t>;

input random_input(std::minstd_rand& random, std::size_t most) {
  input all(1 + random() % most);
  for (std::uint8_t& b : all)
    b = static_cast<std::uint8_t>(random());
  return all;
}

} // namespace

TEST_CASE("The decoders of RoCE keep their contract with random input") {
  std::minstd_rand random(300);
  for (int i = 0; i != rounds; ++i) {
    const input all = random_input(random, 300);
    REQUIRE(fuzz_roce(all.data(), all.size()) == 0);
  }
  CHECK(fuzz_roce(nullptr, 0) == 0);
}

TEST_CASE("The decoders of RoCE keep their contract with right and changed datagrams") {
  std::minstd_rand random(301);
  for (int i = 0; i != rounds; ++i) {
    datagram d;
    d.way.source.raw[15] = 2;
    d.way.destination.raw[15] = 1;
    if (random() % 2 != 0)
      d.immediate = static_cast<std::uint32_t>(random());
    d.payload = random() % 20;
    const datagram_frame f = encode(d);
    // As it is, with another header, or as a packet.
    constexpr std::uint8_t kinds[] = {0, 3, 4};
    input all{kinds[random() % 3]};
    for (const std::byte b : f.before())
      all.push_back(std::to_integer<std::uint8_t>(b));
    all.resize(all.size() + d.payload, 7);
    all.resize(all.size() + f.padding + (all[0] == 4 ? 4 : 0)); // its CRC
    for (unsigned n = random() % 4; n != 0; --n)
      all[1 + random() % (all.size() - 1)] = static_cast<std::uint8_t>(random());
    REQUIRE(fuzz_roce(all.data(), all.size()) == 0);
  }
}

TEST_CASE("The decoders of RoCE keep their contract with right and changed messages") {
  std::minstd_rand random(302);
  for (int i = 0; i != rounds; ++i) {
    input all = random_input(random, 8);
    all[0] = static_cast<std::uint8_t>(1 + random() % 2);
    REQUIRE(fuzz_roce(all.data(), all.size()) == 0);
  }
}
