// SPDX-License-Identifier: BSL-1.0
#include "streams.hpp"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

struct traffic {
  bytes stream;
  std::vector<memory_sink::message> messages;
  bytes tagged = bytes(sink_size);
};

traffic random_traffic(random_engine& random, bool crc, int count) {
  traffic t;
  fpdu_writer writer(crc, number(random, 128, 1500));
  for (int i = 0; i != count; ++i) {
    const sample s = random_sample(random);
    append(t.stream, fpdus(writer, s.message, s.payload));
    const bool tagged = traits(s.message.op).tagged;
    t.messages.push_back({s.message.op, s.message.stag, tagged ? bytes() : s.payload});
    if (tagged)
      std::ranges::copy(s.payload,
                        t.tagged.begin() + static_cast<std::ptrdiff_t>(s.message.tagged_offset));
  }
  return t;
}

bool arrived(const traffic& t, const fpdu_reader& reader, const memory_sink& sink) {
  return reader.state() == reader_state::reading && reader.at_boundary() &&
         sink.messages == t.messages && sink.tagged == t.tagged;
}

} // namespace

TEST_CASE("Random messages arrive in random pieces, with and without CRC") {
  for (std::uint64_t seed = 0; seed != 60; ++seed) {
    CAPTURE(seed);
    random_engine random(seed);
    const bool crc = seed % 2 != 0;
    const traffic t = random_traffic(random, crc, 20);
    memory_sink sink;
    sink.part = number(random, 150, 2000);
    fpdu_reader reader(crc, sink);
    const std::size_t most = number(random, 1, 400);
    for (std::size_t at = 0; at != t.stream.size();) {
      const std::size_t n = std::min<std::size_t>(number(random, 0, most), t.stream.size() - at);
      at += reader.feed(std::span(t.stream).subspan(at, n));
      REQUIRE(reader.state() != reader_state::failed);
      if (random() % 10 == 0)
        sink.not_now = 2;
      if (random() % 3 == 0)
        reader.resume();
    }
    REQUIRE(arrived(t, reader, sink));
  }
}

TEST_CASE("Random messages arrive byte by byte") {
  random_engine random(100);
  for (const bool crc : {false, true}) {
    const traffic t = random_traffic(random, crc, 20);
    memory_sink sink;
    fpdu_reader reader(crc, sink);
    for (const std::byte& b : t.stream)
      REQUIRE(reader.feed({&b, 1}) == 1);
    CHECK(arrived(t, reader, sink));
  }
}

TEST_CASE("A stream that is cut in two at each byte arrives") {
  random_engine random(101);
  for (const bool crc : {false, true}) {
    const traffic t = random_traffic(random, crc, 6);
    for (std::size_t cut = 0; cut <= t.stream.size(); ++cut) {
      memory_sink sink;
      fpdu_reader reader(crc, sink);
      REQUIRE(reader.feed(std::span(t.stream).first(cut)) == cut);
      REQUIRE(reader.feed(std::span(t.stream).subspan(cut)) == t.stream.size() - cut);
      REQUIRE(arrived(t, reader, sink));
    }
  }
}
