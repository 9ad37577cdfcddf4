// SPDX-License-Identifier: BSL-1.0
// A connection and a stream between two hosts, and a network that carries no packets for a time,
// again and again.
#include "device/adapters/flap_totals.hpp"
#include "device/two_hosts/hosts_support.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>

namespace test::hosts_flaps_tests {
namespace {

using namespace test::numbered;
using namespace std::chrono_literals;

constexpr patience less_patient{14, 50ms};

/// The first host listens. rdma_cm takes the network of the thread that makes its objects.
site two_devices(asio::io_context& io) {
  const on_host here(1);
  return {io, device_of(2), device_of(1), address_of(1)};
}

struct traffic {
  explicit traffic(const patience& p) : patient(p) {}

  void connect() {
    const on_host here(2);
    if (!talk)
      talk.emplace(at, patient).begin();
    if (!stream)
      stream.emplace(at, patient).begin();
  }
  std::uint64_t steps() const { return talk->steps() + stream->steps(); }
  bool has_ended() const { return talk->has_ended() || stream->has_ended(); }
  void mark() {
    talk->mark();
    stream->mark();
  }
  /// Whether connection and stream have gone on, or have ended.
  bool goes_on() const {
    return (talk->is_beyond_mark() || talk->has_ended()) &&
           (stream->is_beyond_mark() || stream->has_ended());
  }

  const patience patient;
  asio::io_context io{1};
  site at = two_devices(io);
  std::optional<talk_link> talk;
  std::optional<stream_link> stream;
};

// Counts that nothing is lost, and that nothing is left.
void finish(traffic& t, totals& sum) {
  t.talk->finish();
  t.stream->finish();
  sum.add(*t.talk);
  sum.add(*t.stream);
  t.talk.reset();
  t.stream.reset();
  t.at.listener.close();
  drain(t.io);
  CHECK(t.at.pool.statistics().blocks_in_use == 0);
  CHECK(t.at.other_pool.statistics().blocks_in_use == 0);
}

// Silences of random lengths at random moments. On siw none ends a link, because TCP goes on for a
// quarter of an hour. On rxe one of eight is so long that it may. A shorter one may, too: the two
// hosts fall silent one after the other, and a packet that is reported as missing takes one of the
// repeats.
void flap(int times, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
  };
  traffic t(less_patient);
  totals sum;
  for (int n = 0; n < times; ++n) {
    INFO("flap " << n << ", seed " << seed);
    t.connect();
    const std::uint64_t before = t.steps(), more = below(100);
    t.at.until([&] { return t.steps() >= before + more || t.has_ended(); });
    REQUIRE_FALSE(t.has_ended());
    const std::chrono::milliseconds time(below(8) == 0 ? 600 + below(1500) : below(400));
    {
      const loss of1(1, 100), of2(2, 100);
      t.io.run_for(time);
    }
    t.mark();
    t.at.until([&] { return t.goes_on(); });
    const bool talk_ended = sum.take_ended(t.at, t.talk);
    const bool stream_ended = sum.take_ended(t.at, t.stream);
    if (t.at.dev.type() == transport::iwarp)
      CHECK_FALSE((talk_ended || stream_ended));
  }
  t.connect();
  finish(t, sum);
  std::printf("%d flaps ended %d connections and %d streams\n", times, sum.talks, sum.streams);
  sum.print();
}

// Silences of five seconds at random moments, with default options.
void cut(int times, unsigned seed) {
  std::mt19937 random(seed);
  traffic t{patience()};
  t.connect();
  for (int n = 0; n < times; ++n) {
    INFO("cut " << n << ", seed " << seed);
    const std::uint64_t next = t.steps() + 1 + random() % 100;
    t.at.until([&] { return t.steps() >= next || t.has_ended(); });
    {
      const loss of1(1, 100), of2(2, 100);
      t.io.run_for(5s);
    }
    t.mark();
    t.at.until([&] { return t.goes_on(); });
    REQUIRE_FALSE(t.has_ended());
  }
  totals sum;
  finish(t, sum);
}

} // namespace

TEST_CASE("flaps between two hosts lose nothing that was reported as delivered", "[h12]") {
  flap(20, 12);
}

TEST_CASE("by default a network that is silent for five seconds ends no connection and no stream",
          "[h12]") {
  cut(2, 5);
}

TEST_CASE("20 times five seconds of silence between two hosts", "[.long][h12]") {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  cut(20, seed);
}

TEST_CASE("200 flaps between two hosts", "[.long][h12]") {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  flap(200, seed);
}

} // namespace test::hosts_flaps_tests
