// SPDX-License-Identifier: BSL-1.0
// Two hosts, and a network between them that stops to carry packets.
#include "catch.hpp"
#include "device/two_hosts/hosts_support.hpp"

#include <chrono>
#include <optional>

namespace test::hosts_cut_tests {
namespace {

struct busy_hosts : two_hosts {
  explicit busy_hosts(const queue_pair_options& options, way how = way::connection_manager)
      : two_hosts(options, how) {
    const int before = b1.ended + b2.ended;
    until([&] { return b1.ended + b2.ended > before + 4 * burden::chains; });
  }
  burden b1{q1, m1, m2.remote(0, 4096)}, b2{q2, m2, m1.remote(0, 4096)};
};

std::string describe(const burden& b) {
  return std::to_string(b.timed_out) + " timed out, " + std::to_string(b.reset) + " reset, " +
         std::to_string(b.failed_otherwise) + " otherwise " + b.other;
}

// Checks that every operation ended once, with an error.
void check_ends(const burden& b) {
  INFO(describe(b));
  CHECK(b.ended == b.started);
  CHECK(b.timed_out + b.reset == burden::chains);
  for (const got& r : b.receives) {
    CHECK(r.calls == 1);
    CHECK(r.ec == asio::error::connection_reset);
  }
  CHECK(b.gone.calls == 1);
  CHECK(b.gone.ec == asio::error::connection_reset);
}

bool went_on(const burden& b) {
  return b.timed_out + b.reset + b.failed_otherwise == 0 && !b.gone.done();
}

// Waits for an event of a port; other events may come before it.
void wait_for(busy_hosts& h, device_events& events, ibv_event_type type) {
  outcome<device_event> event;
  do {
    event = {};
    events.async_wait_event(event.handler());
    h.until([&] { return event.done(); });
    REQUIRE(event.succeeded());
  } while (event.value.type != type);
  CHECK(event.value.port == 1);
}

} // namespace

TEST_CASE("a black hole ends all outstanding operations at both hosts") {
  const short_tcp short_retries;
  busy_hosts h(impatient());
  const loss of1(1, 100), of2(2, 100);
  h.until([&] { return h.b1.over() && h.b2.over(); });
  for (const burden* b : {&h.b1, &h.b2}) {
    check_ends(*b);
    CHECK(b->timed_out == (h.iwarp() ? 0 : 1)); // the write that was retried in vain
  }
  CHECK(h.q1.state() == queue_pair_state::failed);
  CHECK(h.q2.state() == queue_pair_state::failed);
}

TEST_CASE("a black hole in one direction ends all outstanding operations at both hosts") {
  const short_tcp short_retries;
  busy_hosts h(impatient());
  const loss of1(1, 100);
  h.until([&] { return h.b1.over() && h.b2.over(); });
  check_ends(h.b1);
  check_ends(h.b2);
  if (!h.iwarp()) // the second host can still report to the first that it has given up
    CHECK(h.b1.timed_out + h.b2.timed_out > 0);
}

TEST_CASE("operations continue after a black hole of less time than the retries take", "[h12]") {
  busy_hosts h({});
  {
    const loss of1(1, 100), of2(2, 100);
    while (of1.packets() == 0 || of2.packets() == 0)
      h.io.poll();
  }
  h.b1.stop();
  h.b2.stop();
  h.until([&] { return h.b1.writes_over() && h.b2.writes_over(); });
  for (const burden* b : {&h.b1, &h.b2}) {
    INFO(describe(*b));
    CHECK(went_on(*b));
  }
}

// The times that `queue_pair_options::timeout` documents for rxe.
TEST_CASE("by default a black hole of five seconds ends nothing, and one that stays everything",
          "[h12]") {
  using namespace std::chrono_literals;
  busy_hosts h({});
  if (h.iwarp())
    return not_on_this_device("retries by the queue pair's options");
  {
    const loss of1(1, 100), of2(2, 100);
    h.io.run_for(5s);
  }
  CHECK(went_on(h.b1));
  CHECK(went_on(h.b2));
  const int before1 = h.b1.ended, before2 = h.b2.ended;
  h.until([&] {
    return h.b1.ended > before1 + burden::chains && h.b2.ended > before2 + burden::chains;
  });
  const loss of1(1, 100), of2(2, 100);
  const auto cut = std::chrono::steady_clock::now();
  h.until([&] { return h.b1.over() && h.b2.over(); });
  const auto silent = std::chrono::steady_clock::now() - cut;
  CHECK(silent > 6s); // 7.5 s
  CHECK(silent < 20s);
  check_ends(h.b1);
  check_ends(h.b2);
}

// rxe fails a queue pair at the first packet that it cannot transmit, so all operations end. The
// connection manager's own queue pair fails too, so these queue pairs connect without it.
TEST_CASE("a link that stays down ends everything, and its device reports it") {
  const short_tcp short_retries;
  busy_hosts h(impatient(), way::by_hand_where_possible);
  device_events events(h.io, h.d1);
  const link_down cut(1);
  wait_for(h, events, IBV_EVENT_PORT_ERR);
  h.until([&] { return h.b1.over() && h.b2.over(); });
  check_ends(h.b1);
  check_ends(h.b2);
}

TEST_CASE("a link that is down for a time: all operations continue or all end, and its device "
          "reports it") {
  busy_hosts h({}, way::by_hand_where_possible);
  device_events events(h.io, h.d2);
  link_down cut(2);
  wait_for(h, events, IBV_EVENT_PORT_ERR);
  cut.up();
  wait_for(h, events, IBV_EVENT_PORT_ACTIVE);
  h.b1.stop();
  h.b2.stop();
  h.until([&] { return h.b1.writes_over() && h.b2.writes_over(); });
  for (const burden* b : {&h.b1, &h.b2}) {
    INFO(describe(*b));
    if (went_on(*b))
      continue;
    h.until([&] { return b->over(); });
    // siw reports the operation whose packet it could not send as IBV_WC_LOC_QP_OP_ERR.
    CHECK(b->failed_otherwise <= (h.iwarp() ? 1 : 0));
    CHECK(b->timed_out + b->reset > 0);
    for (const got& r : b->receives)
      CHECK(r.ec == asio::error::connection_reset);
    CHECK(b->gone.ec == asio::error::connection_reset);
  }
}

} // namespace test::hosts_cut_tests
