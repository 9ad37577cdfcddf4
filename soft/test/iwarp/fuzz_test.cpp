// SPDX-License-Identifier: BSL-1.0
#include "fuzz_iwarp.hpp"

#include "iwarp/mpa_start.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

constexpr int rounds = 2000;

void fuzz(unsigned habits, const bytes& stream) {
  std::vector<std::uint8_t> input;
  input.push_back(static_cast<std::uint8_t>(habits & 0xff));
  for (const std::byte b : stream)
    input.push_back(std::to_integer<std::uint8_t>(b));
  REQUIRE(fuzz_iwarp(input.data(), input.size()) == 0);
}

/// Changes some bytes; sometimes removes or inserts a few.
void mutate(bytes& stream, random_engine& random) {
  for (std::uint64_t n = number(random, 0, 3); n != 0 && !stream.empty(); --n) {
    const std::size_t at = number(random, 0, stream.size() - 1);
    const auto where = stream.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 6) {
    case 0:
      stream.erase(where);
      break;
    case 1:
      stream.insert(where, static_cast<std::byte>(random() & 0xff));
      break;
    case 2:
      stream.resize(at);
      break;
    case 3:
      *where ^= static_cast<std::byte>(1U << random() % 8);
      break;
    default:
      *where = static_cast<std::byte>(random() & 0xff);
    }
  }
}

/// Valid messages that fit into the sink of the fuzzer.
bytes valid_stream(random_engine& random, bool crc) {
  bytes stream;
  fpdu_writer writer(crc, 128);
  for (std::uint64_t n = number(random, 1, 8); n != 0; --n) {
    sample s = random_sample(random);
    s.message.length = std::min<std::uint32_t>(s.message.length, 250);
    s.message.tagged_offset %= 6;
    append(stream, fpdus(writer, s.message, s.payload));
  }
  return stream;
}

} // namespace

TEST_CASE("The readers keep their contract with random input") {
  random_engine random(200);
  for (int i = 0; i != rounds; ++i)
    fuzz(static_cast<unsigned>(random()), pattern(number(random, 0, 200), random()));
}

TEST_CASE("The readers keep their contract with valid and mutated messages") {
  random_engine random(201);
  for (int i = 0; i != rounds; ++i) {
    const auto habits = static_cast<unsigned>(random());
    bytes stream = valid_stream(random, (habits & 1) != 0);
    mutate(stream, random);
    fuzz(habits, stream);
  }
}

TEST_CASE("The readers keep their contract with valid and mutated start frames") {
  random_engine random(202);
  for (int i = 0; i != rounds; ++i) {
    start_frame f;
    f.reply = random() % 2 != 0;
    f.enhanced = random() % 2 != 0;
    REQUIRE(f.set_private_data(pattern(number(random, 0, 100), random())));
    const start_bytes encoded = encode(f);
    bytes stream(encoded.view().begin(), encoded.view().end());
    mutate(stream, random);
    fuzz(static_cast<unsigned>(random()), stream);
  }
}

TEST_CASE("The readers keep their contract with an empty input") {
  CHECK(fuzz_iwarp(nullptr, 0) == 0);
  fuzz(0, {});
}
