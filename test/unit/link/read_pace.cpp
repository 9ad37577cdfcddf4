// SPDX-License-Identifier: BSL-1.0
// How long a peer may take for READs.
#include "link/silent_peer.hpp"

#include <catch.hpp>

namespace test::read_pace_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::detail::protocol_clock;
using asio_rdma::detail::read_pace;

constexpr std::uint64_t piece = 1 << 20;

// A link of which a READ is outstanding, at a time of its own.
struct link {
  link() {
    pace.begin();
    pace.first_posted(now);
  }
  auto late_after(std::chrono::seconds time) { return pace.look(now += time, 15s); }
  // No READ is outstanding for a time.
  void idle(std::chrono::seconds time) {
    pace.last_answered(now);
    pace.first_posted(now += time);
  }

  read_pace pace;
  protocol_clock::time_point now{};
};

} // namespace

TEST_CASE("a peer that answers no READ is late by all of the time") {
  link l;
  CHECK(l.late_after(15s) == 15s);
  CHECK(l.late_after(15s) == 30s);
  l.pace.begin();
  CHECK(l.late_after(15s) == 15s);
}

TEST_CASE("time without READs does not count") {
  link l;
  for (int i = 0; i < 100; ++i) { // each READ is outstanding when the peer is looked at
    CHECK(l.late_after(1s) <= 1s);
    l.pace.answered(piece);
    l.idle(14s);
  }
}

TEST_CASE("time in which this side does not look counts once") {
  link l;
  CHECK(l.late_after(60s) == 15s);
  for (int i = 0; i < 4; ++i)
    l.pace.answered(piece); // they have come meanwhile
  CHECK(l.late_after(60s) == 13805696us);
}

TEST_CASE("once the peer has earned all the time until a look, no other time is asked for") {
  link l;
  CHECK(l.late_after(15s) == 15s);
  CHECK(l.pace.needs_time(15s));
  for (int i = 0; i < 4; ++i)
    l.pace.answered(piece);
  CHECK_FALSE(l.pace.needs_time(15s));
  CHECK(l.late_after(1s) == 13805696us); // as if a READ had been outstanding all the time
  CHECK(l.pace.needs_time(15s));
}

TEST_CASE("an answer now and then does not begin the time anew") {
  for (const bool pauses : {false, true}) {
    link l;
    protocol_clock::duration late{};
    int answers = 0;
    for (; late < 30s; ++answers) { // one answer every half minute
      l.late_after(15s);
      l.pace.answered(piece);
      if (pauses)
        l.idle(1s);
      late = l.late_after(15s);
    }
    CHECK(answers == 2);
  }
}

TEST_CASE("a slow peer has time for all of a message") {
  link l;
  for (int i = 0; i < 512; ++i) { // 250 KiB a second
    l.pace.answered(piece);
    CHECK(l.late_after(4s) == 0s);
  }
}

TEST_CASE("answers earn nothing for later") {
  link l;
  for (int i = 0; i < 100'000; ++i)
    l.pace.answered(piece);
  CHECK(l.late_after(15s) == 0s);
  CHECK(l.late_after(15s) == 15s);
}

TEST_CASE("short READs that take long, one after another, are not late") {
  link l;
  for (int i = 0; i < 1000; ++i) {
    l.pace.answered(8);
    l.pace.answered(8);
    CHECK(l.late_after(5s) == 0s);
  }
}

TEST_CASE("a very long READ has time for its bytes") {
  link l;
  for (int i = 1; i <= 66; ++i)
    CHECK(l.late_after(15s) == i * 15s);
  l.pace.answered(std::uint64_t(1) << 30);
  CHECK(l.late_after(15s) == 0s);
}

} // namespace test::read_pace_tests
