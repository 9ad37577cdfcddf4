// SPDX-License-Identifier: BSL-1.0
// Revocations by one connection, which let the peer finish.
#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/leases/lender.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace test::revocations_tests {
namespace {

using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

using revoked = outcome<revocation>;

/// A lender whose peer, a, does not answer: no completion of its queue pair is found.
struct unanswering : lender {
  unanswering() : lender(megabyte()), faults(dev.native_handle()) {
    region = lend(memory, read_write);
    faults.hold_completions({nullptr, a.impl()->target_queue_pair()->number()});
  }
  void answers_again() { faults.release_completions(); }

  const registered_buffer memory = filled(pool, 4096, 1);
  remote_region region;
  faults::injector faults;
};

} // namespace

// Without the peer's consent the device would refuse some of the READs, and the connection would
// end.
TEST_CASE("a revocation lets the peer's reads finish, and the connection remains usable") {
  constexpr std::size_t bytes = 20'000, count = 100; // some wait for room in the send queue
  lender t;
  for (int round = 0; round != 10; ++round) {
    const registered_buffer memory = filled(t.pool, bytes, 5);
    const remote_region r = t.lend(memory, access::remote_read);
    std::vector<sent> reads(count);
    std::vector<registered_buffer> into;
    for (sent& s : reads) {
      into.push_back(t.pool.allocate(bytes));
      t.a.async_read(into.back(), r, s.handler());
    }
    revoked all;
    t.b.async_revoke(memory, 1min, all.handler());
    bool in_time = true;
    t.until([&] {
      in_time = in_time && (!all.done() || memory.try_write_access());
      return all.done() &&
             std::all_of(reads.begin(), reads.end(), [](const sent& s) { return s.done(); });
    });
    CHECK(in_time); // the memory is the owner's when the handler is called
    REQUIRE(all.succeeded());
    CHECK(all.value == revocation{1, 0});
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE(reads[i].succeeded());
      CHECK(is_pattern(into[i].data(), bytes, 5));
    }
    CHECK(t.read(1, r) == make_error_code(error::lease_revoked).message());
    CHECK(r.deadline() == std::chrono::steady_clock::time_point::min());
    REQUIRE(t.lives());
  }
}

TEST_CASE("a revocation waits until the bytes of the peer's writes are in the memory") {
  constexpr std::size_t bytes = 500'000;
  lender t;
  for (int round = 0; round != 10; ++round) {
    const registered_buffer memory = filled(t.pool, bytes, 1), text = filled(t.pool, bytes, 2);
    const remote_region r = t.lend(memory, access::remote_write);
    sent wrote;
    revoked all;
    bool placed = false;
    t.a.async_write(text, r, wrote.handler());
    t.b.async_revoke(memory, 1min, [&](error_code ec, revocation v) {
      placed = is_pattern(memory.data(), bytes, 2);
      all.handler()(ec, v);
    });
    t.until([&] { return wrote.done() && all.done(); });
    CHECK(wrote.succeeded());
    REQUIRE(all.succeeded());
    CHECK(all.value == revocation{1, 0});
    CHECK(placed);
    CHECK(t.write("x", r) == error::lease_revoked);
    REQUIRE(t.lives());
  }
}

TEST_CASE("a revocation of all memory: loans and grants on request, each slice, each once") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const std::size_t before = t.in_use();
  const remote_region of_request = t.request(4096);
  const remote_region first = t.lend(memory.slice(0, 500), read_write);
  const remote_region second = t.lend(memory.slice(500), read_write);
  revoked none, one, all, again;
  t.b.async_revoke(t.pool.allocate(10), 1min, none.handler());
  t.b.async_revoke(memory.slice(499, 1), 1min, one.handler());
  t.until([&] { return none.done() && one.done(); });
  CHECK(none.succeeded());
  CHECK(none.value == revocation{0, 0});
  CHECK(one.value == revocation{1, 0});
  CHECK(t.write("x", first) == error::lease_revoked);
  CHECK(!t.write("x", second));
  t.b.async_revoke(1min, all.handler());
  t.until([&] { return all.done(); });
  CHECK(all.value == revocation{2, 0});
  CHECK(t.write("x", second) == error::lease_revoked);
  CHECK(t.write("x", of_request) == error::lease_revoked);
  CHECK(memory.try_write_access());
  CHECK(t.in_use() == before);
  t.b.async_revoke(1min, again.handler());
  CHECK(again.calls == 0); // never within the initiating function
  t.until([&] { return again.done(); });
  CHECK(again.succeeded());
  CHECK(again.value == revocation{0, 0});
  CHECK(t.lives());
}

TEST_CASE("a revocation without grace does not wait for the peer") {
  unanswering t;
  revoked all;
  t.b.async_revoke(t.memory, GENERATE(0us, -5us), all.handler());
  CHECK(t.memory.try_write_access());
  t.until([&] { return all.done(); });
  CHECK(all.succeeded());
  CHECK(all.value == revocation{1, 1});
  t.answers_again();
  CHECK(t.lives());
  CHECK(t.write("x", t.region) == error::lease_revoked);
}

TEST_CASE("if the peer does not answer, the grace ends, and only a peer that goes on is refused") {
  unanswering t;
  revoked all;
  const auto begun = std::chrono::steady_clock::now();
  t.b.async_revoke(t.memory, 50ms, all.handler());
  CHECK_FALSE(t.memory.try_read_access());
  t.until([&] { return all.done(); });
  CHECK(std::chrono::steady_clock::now() - begun >= 50ms);
  CHECK(all.succeeded());
  CHECK(all.value == revocation{1, 1});
  CHECK(t.memory.try_write_access());
  t.answers_again(); // its confirmation comes too late
  CHECK(t.lives());
  const bool ignores = GENERATE(false, true);
  if (ignores) {
    const registered_buffer text = filled(t.pool, 64, 2);
    t.refused_by_device([&](sent& s) { t.a.async_write(text, t.region.buffer(), s.handler()); });
  } else {
    CHECK(t.write("x", t.region) == error::lease_revoked);
    CHECK(t.lives());
  }
  CHECK(is_pattern(t.memory.data(), t.memory.size(), 1));
}

TEST_CASE("two revocations of one buffer end together, and revoke ends both at once") {
  unanswering t;
  revoked first, second;
  t.b.async_revoke(t.memory, 1h, first.handler());
  t.b.async_revoke(t.memory.slice(1, 1),
                   GENERATE(std::chrono::milliseconds(30), std::chrono::milliseconds(2h)),
                   second.handler());
  const bool at_once = GENERATE(false, true);
  if (at_once) {
    CHECK(t.b.revoke(t.memory) == 1);
    CHECK(t.memory.try_write_access());
    t.until([&] { return first.done() && second.done(); });
    CHECK(first.value == revocation{1, 1});
    CHECK(second.value == revocation{1, 1});
    t.answers_again();
  } else {
    t.answers_again();
    t.until([&] { return first.done() && second.done(); });
    CHECK(first.value.grants == 1);
    CHECK(second.value == first.value);
  }
  CHECK(first.succeeded());
  CHECK(second.succeeded());
  CHECK(t.lives());
}

TEST_CASE("a cancelled revocation: total has no effect, the others end the wait only") {
  unanswering t;
  asio::cancellation_signal cancel;
  revoked all;
  t.b.async_revoke(t.memory, 1h, asio::bind_cancellation_slot(cancel.slot(), all.handler()));
  const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::partial,
                             asio::cancellation_type::terminal);
  cancel.emit(type);
  t.io.restart();
  t.io.poll();
  CHECK(all.done() == (type != asio::cancellation_type::total));
  CHECK_FALSE(t.memory.try_read_access());
  t.answers_again();
  t.until([&] { return all.done() && t.memory.try_write_access(); });
  if (type == asio::cancellation_type::total)
    CHECK(all.succeeded());
  else
    CHECK(all.ec == asio::error::operation_aborted);
  CHECK(all.calls == 1);
  CHECK(t.write("x", t.region) == error::lease_revoked);
  CHECK(t.lives());
}

TEST_CASE("the end of the connection ends a revocation, after the peer's access") {
  unanswering t;
  enum class kind { closed, lost, goodbye };
  const auto how = GENERATE(kind::closed, kind::lost, kind::goodbye);
  CAPTURE(static_cast<int>(how));
  revoked all;
  bool was_free = false;
  t.b.async_revoke(t.memory, 1h, [&](error_code ec, revocation v) {
    was_free = static_cast<bool>(t.memory.try_write_access());
    all.handler()(ec, v);
  });
  outcome<void> closed, closed_there;
  if (how == kind::closed) {
    t.b.close();
  } else if (how == kind::lost) {
    t.a.close();
  } else {
    t.b.async_close(closed.handler());
    t.answers_again();
    t.until([&] { return all.done(); });
    t.a.async_close(closed_there.handler());
  }
  t.until([&] { return all.done(); });
  CHECK(was_free);
  CHECK(all.value.grants == 1);
  switch (how) {
  case kind::closed:
    CHECK(all.ec == asio::error::operation_aborted);
    break;
  case kind::lost:
    CHECK(all.ec);
    break;
  case kind::goodbye:
    CHECK(all.succeeded());
    CHECK(all.value.unconfirmed == 0);
    t.until([&] { return closed.done() && closed_there.done(); });
    CHECK(closed.succeeded());
    break;
  }
}

TEST_CASE("a revocation after the connection has ended, or before it begins, reports that") {
  lender t;
  asio_rdma::connection never(t.io), unconnected(t.io, t.pool);
  const registered_buffer memory = t.pool.allocate(64);
  const remote_region r = t.lend(memory, read_write);
  const asio_rdma::connection& b = t.b;
  revoked closed, early, late;
  never.async_revoke(1min, closed.handler());
  unconnected.async_revoke(memory, 1min, early.handler());
  t.until([&] { return closed.done() && early.done(); });
  CHECK(closed.ec == asio::error::bad_descriptor);
  CHECK(early.ec == asio::error::not_connected);
  CHECK(b.is_open());
  outcome<void> ended;
  t.b.async_wait_disconnect(ended.handler());
  t.a.close();
  t.until([&] { return ended.done(); });
  t.b.async_revoke(memory, 1min, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.ec);
  CHECK(memory.try_write_access());
}

TEST_CASE("a grant that is revoked with a grace while its key is being made ends with the key") {
  lender t;
  if (!t.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  faults::injector faults(t.dev.native_handle());
  const registered_buffer memory = t.pool.allocate(1000);
  outcome<void> lent;
  revoked all;
  faults.hold_completions({nullptr, t.b.impl()->target_queue_pair()->number()});
  t.b.async_send_region(memory, read_write, lent.handler());
  while (faults.held() == 0)
    std::this_thread::yield();
  t.b.async_revoke(memory, 1us, all.handler());
  t.io.restart();
  t.io.poll();
  CHECK_FALSE(memory.try_read_access()); // a guessed key may still reach it
  faults.release_completions();
  t.until([&] { return lent.done() && all.done(); });
  CHECK(lent.ec == error::lease_revoked);
  CHECK(all.succeeded());
  CHECK(all.value == revocation{1, 0});
  CHECK(memory.try_write_access());
  CHECK(t.lives());
}

TEST_CASE("a context that is destroyed destroys the handler of a revocation") {
  const auto alive = std::make_shared<int>();
  {
    unanswering t;
    t.b.async_revoke(t.memory, 1h, [alive](error_code, revocation) { FAIL("was called"); });
  }
  CHECK(alive.use_count() == 1);
}

} // namespace test::revocations_tests
