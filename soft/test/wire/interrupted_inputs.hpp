// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_INTERRUPTED_INPUTS_HPP
#define SOFT_TEST_WIRE_INTERRUPTED_INPUTS_HPP

#include "support/interrupting_timer.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

namespace soft::test {

/// Plays a thousand inputs of a fuzz target while signals interrupt its waits.
template <class Target>
void play_interrupted(std::uint32_t seed, Target&& target) {
  std::minstd_rand random(seed);
  const interrupting_timer timer;
  for (int i = 0; i != 1000; ++i) {
    std::vector<std::uint8_t> input(1 + random() % 200);
    for (std::uint8_t& b : input)
      b = static_cast<std::uint8_t>(random() % 16);
    REQUIRE(target(input.data(), input.size()) == 0);
  }
  CHECK(timer.signals() > 10);
}

} // namespace soft::test

#endif
