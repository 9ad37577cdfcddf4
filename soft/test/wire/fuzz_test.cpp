// SPDX-License-Identifier: BSL-1.0
#include "fuzz_wire.hpp"
#include "interrupted_inputs.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
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
  // At most half of what a run reaches, which depends on the order of the device's thread and the
  // peer's, too. A READ's answer takes more luck: see below.
  const reached& r = reached_so_far();
  CHECK(r.writes > 50);
  CHECK(r.window_writes > 10);
  CHECK(r.receives > 500);
  CHECK(r.answers > 700);
  CHECK(r.terminates > 3500);
  CHECK(r.direct > 0);
}

TEST_CASE("A signal does not end a wait of the peer that sends anything") {
  play_interrupted(401,
                   [](const std::uint8_t* bytes, std::size_t n) { return fuzz_wire(bytes, n); });
}

TEST_CASE("The inputs of the corpus follow the protocol, so that changes of them reach far") {
  const auto play = [](const char* name) {
    std::ifstream file(std::string(SOFT_WIRE_CORPUS "/") + name, std::ios::binary);
    const std::vector<char> input((std::istreambuf_iterator<char>(file)), {});
    REQUIRE_FALSE(input.empty());
    const reached before = reached_so_far();
    REQUIRE(fuzz_wire(reinterpret_cast<const std::uint8_t*>(input.data()), input.size(), 20s) == 0);
    const reached& r = reached_so_far();
    return std::array{r.fetches - before.fetches, r.window_writes - before.window_writes,
                      r.receives - before.receives, std::size_t(r.direct != before.direct)};
  };
  // A SEND of no bytes, a READ of the device's side, and its answer.
  CHECK(play("read") == std::array<std::size_t, 4>{1, 0, 1, 0});
  // A WRITE to the beginning of what a window grants.
  CHECK(play("window") == std::array<std::size_t, 4>{0, 1, 0, 0});
  // The same with CRCs.
  CHECK(play("window_crc") == std::array<std::size_t, 4>{0, 1, 0, 0});
  // A SEND to a shared receive, on a queue pair of type UC.
  CHECK(play("shared_receive") == std::array<std::size_t, 4>{0, 0, 1, 0});
  // A WRITE of 48 KiB in two pieces.
  CHECK(play("long_write") == std::array<std::size_t, 4>{0, 0, 0, 1});
  // A SEND of 48 KiB, whose memory is deregistered between its pieces.
  CHECK(play("long_send") == std::array<std::size_t, 4>{0, 0, 0, 0});
  // A READ of 32 KiB of the device's side, and its answer in two pieces.
  CHECK(play("long_read") == std::array<std::size_t, 4>{1, 0, 1, 1});
}
