// SPDX-License-Identifier: BSL-1.0
#include "settings/settings.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace soft;
using namespace std::chrono_literals;

namespace {

settings read(std::string_view text) {
  settings s;
  const auto error = parse(text, s);
  INFO(text);
  CAPTURE(error ? error->what : "");
  REQUIRE_FALSE(error);
  return s;
}

// The part of a text that is wrong.
std::string wrong_part(std::string_view text) {
  settings s;
  const auto error = parse(text, s);
  INFO(text);
  REQUIRE(error);
  CHECK(std::string_view(error->what) != "");
  REQUIRE(error->position + error->length <= text.size());
  return std::string(text.substr(error->position, error->length));
}

} // namespace

TEST_CASE("An empty text sets nothing") {
  for (const char* text : {"", " ", "\t\n"}) {
    const settings s = read(text);
    CHECK(s.latency == 0ns);
    CHECK(s.rate == 0);
  }
}

TEST_CASE("A list sets every item of it") {
  const settings s = read("latency=1.2us,rate=100Gb");
  CHECK(s.latency == 1200ns);
  CHECK(s.rate == 100e9);
}

TEST_CASE("Blanks around items are skipped, and those within an item are wrong") {
  CHECK(read(" rate=1Gb , latency=7ns ").latency == 7ns);
  CHECK(wrong_part("rate = 7Gb") == "rate = 7Gb");
  CHECK(wrong_part("latency=1 us") == "1 us");
}

TEST_CASE("A time has a unit, and a fraction of a nanosecond is rounded up") {
  CHECK(read("latency=800ns").latency == 800ns);
  CHECK(read("latency=0.5ns").latency == 1ns);
  CHECK(read("latency=2ms").latency == 2ms);
  CHECK(read("latency=1s").latency == 1s);
  CHECK(read("latency=0").latency == 0ns);
  CHECK(wrong_part("latency=5") == "5");
  CHECK(wrong_part("latency=us") == "us");
  CHECK(wrong_part("latency=-1us") == "-1us");
  CHECK(wrong_part("latency=1.us") == "1.us");
  CHECK(wrong_part("latency=1m,rate=1Gb") == "1m");
  CHECK(wrong_part("latency=1.5s") == "1.5s");
  CHECK(wrong_part("latency=99999999999999999999999ns") == "99999999999999999999999ns");
}

TEST_CASE("A rate has a unit, and is above 0") {
  CHECK(read("rate=1.5Mb").rate == 1.5e6);
  CHECK(read("rate=25Kb").rate == 25e3);
  for (const char* part : {"0", "0Gb", "100", "100gb", "Gb", ""})
    CHECK(wrong_part(std::string("rate=") + part) == part);
}

TEST_CASE("An unknown word is named") {
  CHECK(wrong_part("adapter") == "adapter");
  CHECK(wrong_part("RATE=1Gb") == "RATE=1Gb");
  CHECK(wrong_part("rate=1Gb,latncy=1us") == "latncy=1us");
  CHECK(wrong_part("rate=1Gb,,rate=1Gb") == "");
  CHECK(wrong_part("rate=1Gb,") == "");
  CHECK(wrong_part(",rate=1Gb") == "");
  CHECK(wrong_part("rate=7Gb:") == ":");
}

TEST_CASE("A text that is wrong leaves the settings as they were") {
  settings s = read("latency=9ns");
  REQUIRE(parse("latency=1ns,nonsense", s));
  CHECK(s.latency == 9ns);
}

TEST_CASE("No text crashes the parser or is accepted with a part that was not read") {
  const std::string_view base = "latency=1.2us,rate=100Gb,latency=0.5ms";
  for (std::size_t n = 0; n <= base.size(); ++n) {
    settings s;
    (void)parse(base.substr(0, n), s);
    for (const char c : {'\0', ',', ':', '=', '%', '-', '9', '.', '\xff'}) {
      std::string changed(base);
      if (n < base.size())
        changed[n] = c;
      const auto error = parse(changed, s);
      if (error)
        CHECK(error->position + error->length <= changed.size());
    }
  }
  settings s;
  CHECK_FALSE(parse(base, s));
}
