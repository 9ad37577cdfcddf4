// SPDX-License-Identifier: BSL-1.0
#include "fuzz_cm.hpp"
#include "interrupted_inputs.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

using namespace soft::test;

TEST_CASE("A peer of rdma_cm that sends anything gets one connection or none, and tells its own") {
  std::minstd_rand random(500);
  for (int i = 0; i != 10000; ++i) {
    std::vector<std::uint8_t> input(1 + random() % 200);
    // Small values are more often right.
    const unsigned range = random() % 2 == 0 ? 256 : 16;
    for (std::uint8_t& b : input)
      b = static_cast<std::uint8_t>(random() % range);
    REQUIRE(fuzz_cm(input.data(), input.size()) == 0);
  }
  // Far below the usual numbers. Of the connections that a peer accepts, those are established
  // whose end has not arrived with the answer: that may be none.
  const cm_reached& r = cm_reached_so_far();
  CHECK(r.requests > 10);
  CHECK(r.accepted > 10);
  CHECK(r.refused > 10);
  CHECK(r.rejected > 10);
  CHECK(r.failed > 10);
}

TEST_CASE("A signal does not end a wait of the peer of rdma_cm that sends anything") {
  play_interrupted(501, [](const std::uint8_t* bytes, std::size_t n) { return fuzz_cm(bytes, n); });
}
