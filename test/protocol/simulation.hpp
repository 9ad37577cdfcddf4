// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace simulation {

/// The seed of the current run, to repeat it.
inline std::uint32_t run_seed = 0;

/// Ends the program if an invariant does not hold.
inline void must(bool holds, const char* what) {
  if (holds)
    return;
  std::fprintf(stderr, "does not hold: %s (seed %u)\n", what, unsigned(run_seed));
  std::abort();
}

/// The seed of the first world: ASIO_RDMA_SIMULATION_SEED, or 1.
inline std::uint32_t first_seed() {
  const char* const first = std::getenv("ASIO_RDMA_SIMULATION_SEED");
  return first != nullptr ? static_cast<std::uint32_t>(std::atol(first)) : 1;
}

/// Plays worlds of successive seeds until `steps` steps have been made. The environment variable
/// ASIO_RDMA_SIMULATION_STEPS changes the number of steps.
template <class World, class Totals>
Totals simulate(std::size_t steps) {
  if (const char* const wanted = std::getenv("ASIO_RDMA_SIMULATION_STEPS"))
    steps = std::strtoull(wanted, nullptr, 10);
  std::uint32_t seed = first_seed();
  Totals t;
  while (t.steps < steps) {
    run_seed = seed++;
    World(run_seed, t).play(1500);
  }
  return t;
}

} // namespace simulation
