// SPDX-License-Identifier: BSL-1.0
// The link of an adapter is down for a time. Connections and streams go on afterwards, or end at
// both ends after the time that `queue_pair_options::timeout` documents.
#include "catch.hpp"
#include "device/adapters/flap_totals.hpp"
#include "device/adapters/flap_traffic.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <deque>
#include <optional>
#include <random>
#include <string>

namespace test::flaps_tests {
namespace {

using namespace std::chrono_literals;
using ticks = std::chrono::steady_clock;

/// 117 ms end nothing.
constexpr patience impatient{12, 30ms};
/// 470 ms end nothing.
constexpr patience less_patient{14, 50ms};

std::string down(const std::string& kind, const std::string& when, std::chrono::nanoseconds time) {
  return kind + ",flap=" + when + ":" + std::to_string(time.count()) + "ns";
}

// irdma and bnxt_re raise an event about a request whose retries were in vain, here well before its
// completion.
constexpr std::array<const char*, 4> kinds{"mlx5", "irdma,late_failure=5ms",
                                           "bnxt_re,late_failure=5ms", "erdma"};

std::string any_kind() { return GENERATE(from_range(kinds)); }

/// Traffic on an adapter of each kind.
struct scene {
  explicit scene(const patience& p) : t(io, p) {}

  const std::string kind = any_kind();
  adapter a{kind};
  asio::io_context io{1};
  traffic t; // on the device that has the adapter's limits

  void go_down(std::chrono::nanoseconds time) { t.fall_silent(a, down(kind, "now", time)); }
};

// A link that was down for this time has gone on.
void goes_on_after(scene& s, std::chrono::nanoseconds time) {
  const auto begun = ticks::now();
  s.go_down(time);
  s.t.at.until([&] { return s.t.goes_on(); });
  CHECK(ticks::now() - begun >= time);
  CHECK_FALSE(s.t.has_ended());
}

template <class Link>
void check_end(Link& l) {
  CHECK(l.reason(0) == errc::timed_out);
  CHECK(l.reason(1) == errc::timed_out);
  l.check_nothing_lost();
}

// Operations that are started after the end report its reason, too.
template <class Link>
void check_late(site& s, Link& l) {
  l.begin_late();
  for (const sent& each : l.late) {
    s.until([&] { return each.done(); });
    CHECK(each.ec == errc::timed_out);
  }
}

// A link that stays down ends everything. Returns the time that this took.
std::chrono::nanoseconds ends_in_time(scene& s, const patience& p) {
  traffic& t = s.t;
  const auto begun = ticks::now();
  s.go_down(600s);
  t.at.until([&] { return t.talk->is_over() && t.stream->is_over(); });
  const auto took = ticks::now() - begun;
  CHECK(took >= p.harmless());
  CHECK(took <= p.longest());
  check_end(*t.talk);
  check_end(*t.stream);
  check_late(t.at, *t.talk);
  check_late(t.at, *t.stream);
  t.talk->close();
  t.stream->close();
  return took;
}

// Flaps of any length at any moment of the traffic, of one link or of all.
totals flap(const std::string& kind, int times, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
  };
  totals sum;
  adapter a(kind);
  asio::io_context io(1);
  traffic t(io, impatient);
  t.begin();
  for (int n = 0; n < times; ++n) {
    INFO("flap " << n << " of " << kind << ", seed " << seed);
    t.go_on(below(300));
    // One of four may last so long that it ends the link.
    const auto most = static_cast<std::uint64_t>(impatient.harmless().count());
    const std::chrono::nanoseconds time(1 + below(most * (below(4) == 0 ? 2 : 1) - 1));
    std::string when = "now";
    if (const auto where = below(3); where != 0)
      when = (where == 1 ? "request:" : "recv:") + std::to_string(1 + below(100));
    t.fall_silent(a, down(kind, when, time));
    t.at.until([&] { return t.goes_on(); });
    a.become(kind.c_str());
    const bool talk_ended = sum.take_ended(t.at, t.talk);
    const bool stream_ended = sum.take_ended(t.at, t.stream);
    if (talk_ended || stream_ended)
      CHECK(time >= impatient.harmless());
    t.connect();
    if (talk_ended)
      t.talk->begin();
    if (stream_ended)
      t.stream->begin();
  }
  t.talk->finish();
  t.stream->finish();
  sum.add(*t.talk);
  sum.add(*t.stream);
  t.check_empty();
  return sum;
}

} // namespace

TEST_CASE("a link that is down for less than the documented time ends no connection and no stream",
          "[h12]") {
  scene s(less_patient);
  traffic& t = s.t;
  INFO(s.kind);
  SECTION("under load") {
    t.load();
    goes_on_after(s, less_patient.harmless() * 2 / 3);
  }
  SECTION("idle before") {
    const auto time = less_patient.harmless() * 2 / 3;
    const auto begun = ticks::now();
    s.go_down(time);
    t.stream->begin();
    t.at.until([&] { return t.stream->is_beyond_mark(); });
    CHECK(ticks::now() - begun >= time);
    t.talk->begin();
    CHECK_FALSE(t.has_ended());
  }
  t.talk->finish();
  t.stream->finish();
  t.check_empty();
}

TEST_CASE(
    "a link that is down for longer ends connections and streams at both ends, with one error",
    "[h12]") {
  scene s(less_patient);
  traffic& t = s.t;
  INFO(s.kind);
  SECTION("under load") { t.load(); }
  SECTION("idle") {} // then the peer is probed
  ends_in_time(s, less_patient);
  t.check_empty();
}

// The device has carried out the bind of the offer, which no completion reports before the offer.
TEST_CASE("a silent peer is noticed while a long message waits for credits", "[h12]") {
  adapter a("mlx5");
  asio::io_context io(1);
  site at(io);
  auto o = less_patient.options<connection_options>();
  o.gather = false; // each message takes a receive
  auto few = o;
  few.receives = 8; // of which three are for control
  asio_rdma::connection from(io), to(io);
  from.open(at.pool, o);
  to.open(at.other_pool, few);
  at.connect(from, to);
  std::array<sent, 5> short_ones;
  for (sent& s : short_ones)
    from.async_send(asio::buffer("short"), s.handler());
  at.until([&] {
    return std::all_of(short_ones.begin(), short_ones.end(), [](sent& s) { return s.done(); });
  });
  sent long_one;
  from.async_send(at.pool.allocate(1 << 20), long_one.handler());
  at.until([&] { return from.statistics().credit_waits != 0; });
  a.become(down("mlx5", "now", 600s).c_str());
  at.until([&] { return long_one.done(); });
  CHECK(long_one.ec == errc::timed_out);
}

TEST_CASE("flaps at random moments lose nothing that was reported as delivered", "[h12]") {
  flap(any_kind(), 8, 12);
}

TEST_CASE("200 flaps at random moments", "[.long][h12]") {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  flap("mlx5", 1, seed); // also makes what the process has once
  const auto before = device_objects();
  int talks = 0, streams = 0;
  for (const char* const kind : kinds) {
    const totals sum = flap(kind, 50, seed);
    std::printf("%s: 50 flaps ended %d connections and %d streams\n", kind, sum.talks, sum.streams);
    sum.print();
    talks += sum.talks;
    streams += sum.streams;
  }
  CHECK(talks != 0);
  CHECK(streams != 0);
  CHECK(device_objects() == before);
}

// A test that sleeps: on all kinds at a time, and the only times that it compares are the device's.
TEST_CASE("by default five seconds end nothing, and a link that stays down ends everything",
          "[.patience][h12]") {
  const patience by_default;
  adapter a(kinds.front());
  asio::io_context io(1);
  std::deque<traffic> all;
  for (const char* const kind : kinds) {
    a.become(kind);
    all.emplace_back(io, by_default).load();
  }
  const auto wait = [&](const auto& condition) {
    while (!std::all_of(all.begin(), all.end(), condition))
      io.run_one(); // no limit, as other programs may be busy
  };
  const auto go_down = [&](std::chrono::nanoseconds time) {
    a.become(down(kinds.front(), "now", time).c_str());
    for (traffic& t : all) {
      t.until_silent();
      t.mark();
    }
  };
  go_down(5s);
  wait([](const traffic& t) { return t.goes_on(); });
  for (const traffic& t : all)
    REQUIRE_FALSE(t.has_ended());
  const auto begun = ticks::now();
  // All would go on after this time if they had not ended.
  go_down(by_default.longest());
  const auto is_over = [](const traffic& t) {
    return t.talk->is_over() && t.stream->is_over();
  };
  wait([&](const traffic& t) {
    return is_over(t) || t.talk->is_beyond_mark() || t.stream->is_beyond_mark();
  });
  REQUIRE(std::all_of(all.begin(), all.end(), is_over));
  const std::chrono::duration<double> took = ticks::now() - begun;
  std::printf("went on after 5 s, and ended after %.2f s\n", took.count());
  for (traffic& t : all) {
    check_end(*t.talk);
    check_end(*t.stream);
    t.talk->close();
    t.stream->close();
    t.check_empty();
  }
}

} // namespace test::flaps_tests
