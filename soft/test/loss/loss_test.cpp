// SPDX-License-Identifier: BSL-1.0
// The wire between two processes whose connection is cut into pieces, or lost after any byte. A
// relay between them passes so many bytes. `test_soft_loss "[.all]"` loses each byte of all scenes
// in both ways, which takes half an hour. The other tests take a sample, by a seed that they print;
// `--rng-seed` repeats it.
#include "relay.hpp"
#include "sides.hpp"

#include "engine/sanitizers.hpp"
#include "iwarp/crc32c.hpp"
#include "iwarp/ddp.hpp"
#include "iwarp/mpa_start.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <random>
#include <set>

using namespace soft::test;

namespace {

// A scene with more bytes than `few` in a direction is lost only around the ends of frames, and
// after `sample` bytes. With a sanitizer each run takes several times as long.
constexpr std::uint64_t few = SOFT_ADDRESS_SANITIZER || SOFT_THREAD_SANITIZER ? 0 : 2048;
constexpr unsigned sample = 100;

// Of the next scene, for the other process.
struct opening {
  bool ends = false; // there is none
  bool comes = true; // `listening_side::play`
  unsigned scene = 0;
};

// Of the sample. The seed is printed at once: a test that hangs reports nothing.
std::mt19937 seeded() {
  std::cout << "--rng-seed " << Catch::rngSeed() << std::endl;
  return std::mt19937(Catch::rngSeed());
}

void play(party& p) { p.play(); }

// Both sides of one scene, again and again.
class two_processes {
public:
  explicit two_processes(unsigned scene)
      : scene_(scene),
        side_("child: plays scenes"),
        relay_(side_.port(), {.segment = scenes()[scene]->segment()}) {}

  connecting_side::reports play(const relay::plan& p, bool comes = true) {
    trade(side_.channel(), opening{.comes = comes, .scene = scene_});
    relay_.start(p);
    const auto r = side_.play(*scenes()[scene_], relay_.port(), ::play);
    passed = relay_.finish();
    return r;
  }
  void play_whole(const relay::plan& p) {
    REQUIRE(fault_of_whole(*scenes()[scene_], play(p)) == "");
  }
  void end() {
    trade(side_.channel(), opening{.ends = true});
    CHECK(side_.wait() == 0);
  }
  std::array<relay::bytes, 2> passed; // by the relay

private:
  const unsigned scene_;
  connecting_side side_;
  relay relay_;
};

// The offsets where a start frame or an FPDU ends.
// Source: RFC 5044, sections 4.1 and 7.1
std::set<std::uint64_t> ends_of_frames(const relay::bytes& all, direction d) {
  soft::iwarp::start_reader start(d == to_connector);
  std::size_t at = start.feed(all).consumed;
  std::set<std::uint64_t> ends{at};
  while (at + soft::iwarp::ulpdu_length_size < all.size()) {
    const auto byte = [&](std::size_t i) {
      return std::to_integer<std::size_t>(all[at + i]);
    };
    const std::size_t ulpdu = byte(0) << 8 | byte(1);
    at += soft::iwarp::ulpdu_length_size + ulpdu + soft::iwarp::padding_of(ulpdu) +
          soft::iwarp::crc32c::size;
    ends.insert(at);
  }
  REQUIRE(at == all.size());
  return ends;
}

// Loses the connections of a scene, whose bytes a first connection has counted.
class losses : public two_processes {
public:
  explicit losses(unsigned scene) : two_processes(scene) {
    play_whole({});
    for (const direction d : {to_listener, to_connector}) {
      bytes_[d] = passed[d].size();
      ends_[d] = ends_of_frames(passed[d], d);
    }
  }
  std::uint64_t bytes(direction d) const { return bytes_[d]; }
  // The numbers of bytes after which the connection may be lost.
  std::set<std::uint64_t> all(direction d) const {
    std::set<std::uint64_t> numbers;
    for (std::uint64_t n = 0; n <= bytes(d); ++n)
      numbers.insert(numbers.end(), n);
    return numbers;
  }
  std::set<std::uint64_t> some(direction d, std::mt19937& random) const {
    std::set<std::uint64_t> numbers{0};
    for (const std::uint64_t end : ends_[d]) // around the end of each frame
      numbers.insert({end - 1, end, std::min(end + 1, bytes(d))});
    for (unsigned i = 0; i != sample; ++i)
      numbers.insert(random() % bytes(d));
    return numbers;
  }

  void lose(const relay::loss& l) {
    INFO("direction " << l.of << ", after byte " << l.after << " of " << bytes(l.of)
                      << (l.by == relay::ending::reset ? ", reset" : ", closed"));
    // The connector's first frame is its request. The listener sends nothing before it has that.
    const bool comes = l.after >= (l.of == to_listener ? *ends_[to_listener].begin() : 1);
    const auto r = play({.lost = l}, comes);
    CHECK(fault_of(r) == "");
    CHECK(r.other.established <= r.own.established);
    CHECK(passed[l.of].size() == l.after);
  }

private:
  std::array<std::uint64_t, 2> bytes_{};
  std::array<std::set<std::uint64_t>, 2> ends_;
};

} // namespace

TEST_CASE("child: plays scenes", "[.child]") {
  listening_side l;
  for (;;) {
    const opening o = trade(parent_channel, opening());
    if (o.ends)
      return;
    l.play(*scenes()[o.scene], play, o.comes);
  }
}

TEST_CASE("Requests of both sides succeed if the bytes come in pieces of any size") {
  std::mt19937 random = seeded();
  for (unsigned scene = 0; scene != scenes().size(); ++scene) {
    two_processes t(scene);
    for (const char* const settings : {"", "crc=1"}) {
      const with_settings set(settings);
      for (int run = 0; run != 10; ++run) {
        const auto pieces = static_cast<std::uint32_t>(1 + random() % 1'000'000);
        INFO("scene " << scene << ", pieces of seed " << pieces << ", settings " << settings);
        t.play_whole({.lost = {}, .pieces = pieces});
      }
    }
    t.end();
  }
}

TEST_CASE("A connection that is lost after any byte ends, and all requests with it") {
  std::mt19937 random = seeded();
  for (unsigned scene = 0; scene != scenes().size(); ++scene) {
    INFO("scene " << scene);
    losses l(scene);
    for (const direction d : {to_listener, to_connector})
      for (const std::uint64_t a : l.bytes(d) <= few ? l.all(d) : l.some(d, random))
        l.lose({d, a, random() % 2 == 0 ? relay::ending::reset : relay::ending::close});
    l.end();
  }
}

TEST_CASE("A connection that is lost after each byte ends, and all requests with it", "[.all]") {
  for (unsigned scene = 0; scene != scenes().size(); ++scene)
    DYNAMIC_SECTION("scene " << scene) {
      losses l(scene);
      unsigned lost = 0;
      for (const direction d : {to_listener, to_connector})
        for (const std::uint64_t a : l.all(d))
          for (const relay::ending by : {relay::ending::reset, relay::ending::close}) {
            l.lose({d, a, by});
            ++lost;
          }
      l.end();
      std::cout << "scene " << scene << ": " << lost << " connections lost" << std::endl;
    }
}
