// SPDX-License-Identifier: BSL-1.0
// Sends and receives of messages that are cancelled, at each stage.
#include "catch.hpp"
#include "device/connection/cancelled_letters.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <variant>

namespace test::connection_cancel_tests {
namespace {

asio::cancellation_type any_type() {
  return GENERATE(asio::cancellation_type::partial, asio::cancellation_type::total,
                  asio::cancellation_type::terminal);
}

letter::kind any_kind() {
  return GENERATE(letter::kind::plain, letter::kind::owned, letter::kind::view);
}

/// Receives as many messages as there are seeds, and compares them.
void expect(talk& t, const std::vector<std::pair<std::size_t, std::uint32_t>>& messages) {
  for (const auto& [bytes, seed] : messages) {
    CAPTURE(bytes, seed);
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    REQUIRE(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, seed));
  }
}

void wait_for_frames(talk& t, std::uint64_t more) {
  const std::uint64_t before = t.b.statistics().frames_received;
  t.until([&] { return t.b.statistics().frames_received >= before + more; });
}

taker::kind any_taker() {
  return GENERATE(taker::kind::owning, taker::kind::plain, taker::kind::owned, taker::kind::view);
}

} // namespace

// --- Receives --------------------------------------------------------------------------------

TEST_CASE("a receive that is cancelled before anything comes takes nothing") {
  talk t;
  const auto type = any_type();
  taker cancelled(t, any_taker()), other(t, taker::kind::owning);
  const std::size_t bytes = GENERATE(eager, lengthy);
  cancelled.receive(t);
  other.receive(t);
  CHECK(in_use(cancelled.owned) == (cancelled.what == taker::kind::owned));
  cancelled.cancel.emit(type);
  t.until([&] { return cancelled.done(); });
  CHECK(cancelled.ec() == asio::error::operation_aborted);
  CHECK(!in_use(cancelled.owned));
  sent s;
  send(t, bytes, 1, s);
  t.until([&] { return other.done() && s.done(); });
  CHECK(other.has(bytes, 1));
  CHECK(cancelled.calls() == 1);
  CHECK(t.lives());
}

TEST_CASE("a receive that is cancelled while its message is being read takes nothing") {
  talk t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    const auto type = any_type();
    taker cancelled(t, any_taker());
    taker other(t, GENERATE(taker::kind::owning, taker::kind::owned));
    sent s, behind;
    send(t, lengthy, 1, s);
    send(t, eager, 2, behind);
    wait_for_frames(t, 2);
    const bool both = GENERATE(false, true);
    cancelled.receive(t); // posts the READ, whose completion is polled when the context runs
    if (both)
      other.receive(t);
    cancelled.cancel.emit(type);
    t.until([&] { return cancelled.done(); });
    CHECK(cancelled.ec() == asio::error::operation_aborted);
    if (!both)
      other.receive(t);
    t.until([&] { return other.done() && s.done() && behind.done(); });
    CHECK(other.has(lengthy, 1));
    CHECK(s.succeeded());
    CHECK(behind.succeeded());
    expect(t, {{eager, 2}});
    CHECK(cancelled.calls() == 1);
    t.until([&] { return !in_use(cancelled.owned); });
  }
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("cancelled receives in the middle of several leave the others in order") {
  talk t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    std::deque<taker> takers;
    std::deque<sent> sends;
    const unsigned which =
        GENERATE(0b000001u, 0b000010u, 0b001000u, 0b010101u, 0b101010u, 0b011110u);
    const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::terminal);
    const taker::kind kind = any_taker();
    CAPTURE(which, static_cast<int>(type), static_cast<int>(kind));
    constexpr std::uint32_t count = 6;
    const auto size_of = [](std::uint32_t n) {
      return n % 4 == 3 ? eager : lengthy - n;
    };
    for (std::uint32_t i = 0; i < count; ++i)
      send(t, size_of(i), i, sends.emplace_back());
    wait_for_frames(t, count);
    for (std::uint32_t i = 0; i < count; ++i)
      takers.emplace_back(t, kind).receive(t);
    for (std::uint32_t i = 0; i < count; ++i)
      if ((which >> i & 1) != 0)
        takers[i].cancel.emit(type);
    t.until([&] {
      return std::all_of(takers.begin(), takers.end(), [](const taker& x) { return x.done(); });
    });
    std::uint32_t next = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      CAPTURE(i, next);
      // A receive whose message was already complete is not cancelled: it has its message.
      if ((which >> i & 1) != 0 && takers[i].ec()) {
        CHECK(takers[i].ec() == asio::error::operation_aborted);
        CHECK(takers[i].calls() == 1);
      } else {
        CHECK(takers[i].has(size_of(next), next));
        ++next;
      }
    }
    for (; next < count; ++next)
      expect(t, {{size_of(next), next}});
    t.until([&] {
      return std::all_of(sends.begin(), sends.end(), [](const sent& s) { return s.done(); });
    });
    CHECK(std::all_of(sends.begin(), sends.end(), [](const sent& s) { return s.succeeded(); }));
  }
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("cancel ends every wait, and nothing is lost") {
  talk t;
  const memory target(t.pd, 4096, most_rights(t.dev));
  REQUIRE(t.lives());
  taker waits(t, any_taker());
  outcome<message> second;
  outcome<std::uint32_t> immediate, told;
  outcome<std::variant<registered_buffer, remote_region>> region, lent;
  sent s, goes_on, written;
  t.b.async_send(asio::buffer(pattern(lengthy, 5)), goes_on.handler()); // a send is no wait
  send(t, lengthy, 1, s);
  wait_for_frames(t, 1);
  waits.receive(t); // its message is being read
  t.b.async_receive(second.handler());
  t.b.async_receive_immediate(immediate.handler());
  t.b.async_receive_region(region.handler());
  t.b.cancel();
  t.until([&] { return waits.done() && second.done() && immediate.done() && region.done(); });
  CHECK(waits.ec() == asio::error::operation_aborted);
  CHECK(second.ec == asio::error::operation_aborted);
  CHECK(immediate.ec == asio::error::operation_aborted);
  CHECK(region.ec == asio::error::operation_aborted);
  expect(t, {{lengthy, 1}});
  outcome<message> at_a;
  outcome<void> lends;
  t.a.async_receive(at_a.handler());
  t.a.async_write(asio::buffer("x", 1), target.remote(), 7u, written.handler());
  t.a.async_send_region(t.pool.allocate(64), lends.handler());
  t.b.async_receive_immediate(told.handler());
  t.b.async_receive_region(lent.handler());
  t.until([&] {
    return s.done() && at_a.done() && goes_on.done() && told.done() && lent.done() &&
           written.done() && lends.done();
  });
  CHECK(s.succeeded());
  CHECK(goes_on.succeeded());
  CHECK(at_a.succeeded());
  CHECK(told.value == 7);
  CHECK(lent.succeeded());
}

// --- Sends -----------------------------------------------------------------------------------

TEST_CASE("a send that waits for the peer's receives is taken back") {
  connection_options apart, few;
  apart.gather = false; // each message takes a receive
  few.receives = 8;
  talk t(apart, few);
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    const auto type = any_type();
    letter victim(t, any_kind(), GENERATE(eager, lengthy), 99);
    const bool later = GENERATE(false, true);
    std::array<sent, 10> before;
    sent behind;
    for (std::uint32_t i = 0; i < before.size(); ++i)
      send(t, 100, i, before[i]);
    victim.send(t);
    send(t, lengthy, 50, behind);
    if (later)
      t.until([&] { return t.a.statistics().credit_waits != 0 && before[0].done(); });
    CHECK(in_use(victim.owned) == (victim.what == letter::kind::owned));
    victim.cancel.emit(type);
    victim.overwrite();
    CHECK(!in_use(victim.owned));
    t.until([&] { return victim.result.done(); });
    CHECK(victim.result.ec == asio::error::operation_aborted);
    for (std::uint32_t i = 0; i < before.size(); ++i)
      expect(t, {{100, i}});
    expect(t, {{lengthy, 50}});
    t.until([&] {
      return behind.done() &&
             std::all_of(before.begin(), before.end(), [](const sent& s) { return s.done(); });
    });
    CHECK(behind.succeeded());
    CHECK(std::all_of(before.begin(), before.end(), [](const sent& s) { return s.succeeded(); }));
    CHECK(victim.result.calls == 1);
  }
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("a send that has begun arrives; where the library keeps its memory it ends at once, but "
          "by total") {
  talk t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    const auto type = any_type();
    const letter::kind kind = GENERATE(letter::kind::plain, letter::kind::owned);
    const std::size_t bytes = GENERATE(eager, lengthy);
    enum class stage { posted, there, being_read };
    const stage when = GENERATE(stage::posted, stage::there, stage::being_read);
    CAPTURE(static_cast<int>(type), static_cast<int>(kind), bytes, static_cast<int>(when));
    letter victim(t, kind, bytes, 99);
    sent before, behind;
    outcome<message> first, second;
    send(t, 100, 1, before);
    victim.send(t);
    send(t, 100, 2, behind);
    if (when != stage::posted)
      t.until([&] { return behind.done(); }); // an eager victim completes too
    t.b.async_receive(first.handler());
    if (when == stage::being_read)
      t.b.async_receive(second.handler());
    victim.cancel.emit(type);
    const bool was_complete = bytes == eager && when != stage::posted;
    const bool goes_on = was_complete || type == asio::cancellation_type::total;
    CHECK(in_use(victim.owned) == (kind == letter::kind::owned && !was_complete));
    if (!goes_on) {
      t.until([&] { return victim.result.done(); });
      CHECK(victim.result.ec == asio::error::operation_aborted);
    }
    victim.overwrite();
    if (when != stage::being_read)
      t.b.async_receive(second.handler());
    t.until([&] { return first.done() && second.done(); });
    REQUIRE(second.succeeded());
    REQUIRE(second.value.size() == bytes);
    CHECK(is_pattern(second.value.payload.data(), bytes, 99));
    expect(t, {{100, 2}});
    t.until([&] { return before.done() && behind.done() && !in_use(victim.owned); });
    CHECK(before.succeeded());
    CHECK(behind.succeeded());
    t.until([&] { return victim.result.done(); });
    CHECK((victim.result.succeeded() || !goes_on));
    CHECK(victim.result.calls == 1);
  }
  CHECK(t.lives());
  // A copy is kept until the peer has acknowledged reading it. That wait is no work.
  const auto work = asio::make_work_guard(t.io);
  t.until([&] { return t.pool.statistics().blocks_in_use == blocks; });
}

TEST_CASE("a view that is being sent continues, or ends with the connection") {
  talk t;
  REQUIRE(t.lives());
  const auto type = any_type();
  const std::size_t bytes = GENERATE(eager, lengthy);
  const bool there = GENERATE(false, true);
  CAPTURE(static_cast<int>(type), bytes, there);
  letter victim(t, letter::kind::view, bytes, 99);
  sent behind;
  outcome<message> r;
  outcome<void> ended, ended_there;
  t.a.async_wait_disconnect(ended.handler());
  t.b.async_wait_disconnect(ended_there.handler());
  victim.send(t);
  send(t, 100, 2, behind);
  if (there && bytes == lengthy) {
    t.until([&] { return behind.done(); });
    t.b.async_receive(r.handler());
  }
  victim.cancel.emit(type);
  if (type != asio::cancellation_type::terminal) {
    if (!there || bytes == eager)
      t.b.async_receive(r.handler());
    t.until([&] { return victim.result.done() && r.done(); });
    CHECK(victim.result.succeeded());
    REQUIRE(r.succeeded());
    CHECK(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, 99));
    expect(t, {{100, 2}});
    CHECK(t.lives());
    CHECK(!ended.done());
    return;
  }
  t.until(
      [&] { return victim.result.done() && behind.done() && ended.done() && ended_there.done(); });
  CHECK(victim.result.calls == 1);
  // The device may have completed before the cancellation.
  CHECK((!victim.result.ec || victim.result.ec == asio::error::operation_aborted));
  CHECK((!behind.ec || behind.ec == asio::error::operation_aborted));
  CHECK(ended.ec == asio::error::operation_aborted);
  CHECK(ended_there.ec == asio::error::connection_reset);
  // The message arrives whole, or not at all.
  if (!r.done()) {
    t.b.async_receive(r.handler());
    t.until([&] { return r.done(); });
  }
  if (!r.ec && r.value.size() == bytes)
    CHECK(is_pattern(r.value.payload.data(), bytes, 99));
  else if (!r.ec)
    CHECK(is_pattern(r.value.payload.data(), 100, 2));
}

} // namespace test::connection_cancel_tests
