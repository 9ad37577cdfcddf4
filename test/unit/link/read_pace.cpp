// SPDX-License-Identifier: BSL-1.0
// How long a peer may take for READs.
#include "link/silent_peer.hpp"

#include <catch.hpp>

namespace test::read_pace_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::detail::read_pace;

constexpr std::uint64_t piece = 1 << 20;

} // namespace

TEST_CASE("a peer that answers no READ is late by all of the time") {
  read_pace p;
  p.begin();
  CHECK(p.after(15s) == 15s);
  CHECK(p.after(15s) == 30s);
  p.begin();
  CHECK(p.after(15s) == 15s);
}

TEST_CASE("an answer now and then does not begin the time anew") {
  read_pace p;
  p.begin();
  std::chrono::microseconds late{};
  int answers = 0;
  for (; late < 30s; ++answers) { // one answer every half minute
    p.after(15s);
    p.answered(piece);
    late = p.after(15s);
  }
  CHECK(answers == 2);
}

TEST_CASE("a slow peer has time for all of a message") {
  read_pace p;
  p.begin();
  for (int i = 0; i < 512; ++i) { // 250 KiB a second
    p.answered(piece);
    CHECK(p.after(4s) == 0s);
  }
}

TEST_CASE("answers earn nothing for later") {
  read_pace p;
  p.begin();
  for (int i = 0; i < 100'000; ++i)
    p.answered(piece);
  CHECK(p.after(15s) == 0s);
  CHECK(p.after(15s) == 15s);
}

TEST_CASE("short READs that take long, one after another, are not late") {
  read_pace p;
  p.begin();
  for (int i = 0; i < 1000; ++i) {
    p.answered(8);
    p.answered(8);
    CHECK(p.after(5s) == 0s);
  }
}

TEST_CASE("a very long READ has time for its bytes") {
  read_pace p;
  p.begin();
  CHECK(p.after(1000s) == 1000s);
  p.answered(std::uint64_t(1) << 30);
  CHECK(p.after(15s) == 0s);
}

} // namespace test::read_pace_tests
