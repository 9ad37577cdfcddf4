// SPDX-License-Identifier: BSL-1.0
#include "fuzz_wire.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

using namespace soft::test;
using namespace std::chrono_literals;

TEST_CASE(
    "A peer that sends anything reaches granted memory only, and each request completes once") {
  std::minstd_rand random(400);
  for (int i = 0; i != 10000; ++i) {
    std::vector<std::uint8_t> input(1 + random() % 600);
    // Small values are more often right.
    const unsigned range = random() % 2 == 0 ? 256 : 16;
    for (std::uint8_t& b : input)
      b = static_cast<std::uint8_t>(random() % range);
    REQUIRE(fuzz_wire(input.data(), input.size()) == 0);
  }
  const reached& r = reached_so_far(); // a READ's answer takes more luck: see below
  CHECK(r.writes > 100);
  CHECK(r.receives > 100);
  CHECK(r.answers > 100);
  CHECK(r.terminates > 100);
}

TEST_CASE("The inputs of the corpus follow the protocol, so that changes of them reach far") {
  // A SEND of no bytes, a READ of the device's side, and its answer.
  std::ifstream file(SOFT_WIRE_CORPUS "/read", std::ios::binary);
  const std::vector<char> input((std::istreambuf_iterator<char>(file)), {});
  REQUIRE_FALSE(input.empty());
  const std::size_t before = reached_so_far().fetches;
  REQUIRE(fuzz_wire(reinterpret_cast<const std::uint8_t*>(input.data()), input.size(), 20s) == 0);
  CHECK(reached_so_far().fetches == before + 1);
}
