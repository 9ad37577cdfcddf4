// SPDX-License-Identifier: BSL-1.0
// Parties of the asymmetric lock that cancel, close or die.
#include "catch.hpp"
#include "device/locks/alock_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>

#include <memory>
#include <optional>
#include <vector>

namespace test::alock_ends_tests {
namespace {

/// A party whose acquisition can be cancelled.
struct quitter {
  void start(alock& lock) {
    lock.async_lock(asio::bind_cancellation_slot(signal.slot(), result.handler()));
  }
  void give_up() { signal.emit(asio::cancellation_type::total); }

  asio::cancellation_signal signal;
  acquisition result;
};

} // namespace

TEST_CASE("a cancelled acquisition passes the lock on") {
  lock_scene s;
  if (!s.atomics())
    return;
  const bool by_local = GENERATE(true, false), quits_local = GENERATE(true, false),
             next_local = GENERATE(true, false), queued = GENERATE(true, false);
  CAPTURE(by_local, quits_local, next_local, queued);
  auto held = s.take(by_local ? s.local : s.remote);
  quitter q;
  const auto before = s.tails();
  q.start(quits_local ? s.local : s.remote);
  if (queued)
    s.until([&] { return s.tails() != before; });
  acquisition next;
  if (queued)
    s.queue(next_local ? s.local : s.remote, next);
  else
    (next_local ? s.local : s.remote).async_lock(next.handler());
  q.give_up();
  s.until([&] { return q.result.done; });
  CHECK(q.result.ec == asio::error::operation_aborted);
  CHECK(!q.result.guard);
  s.pass_time();
  CHECK(!next.done);
  held.guard.unlock();
  s.until([&] { return next.done; });
  CHECK(!next.ec);
  next.guard.unlock();
  s.until([&] { return s.is_free(); });
}

TEST_CASE("a cancellation that comes too late changes nothing") {
  lock_scene s;
  quitter q;
  q.start(s.local);
  s.until([&] { return q.result.done; });
  q.give_up();
  CHECK(q.result.guard);
  acquisition next;
  s.local.async_lock(next.handler());
  s.pass_time();
  CHECK(!next.done);
  q.result.guard.unlock();
  s.until([&] { return next.done; });
}

TEST_CASE("the death of a party that holds the lock, or waits for it, is reported to the parties "
          "behind it") {
  lock_scene s;
  if (!s.atomics())
    return;
  const bool holds = GENERATE(true, false), has_given_up = GENERATE(true, false);
  if (holds && has_given_up)
    return;
  CAPTURE(holds, has_given_up);
  auto mortal = std::make_unique<global_memory>(s.io, s.pool, 77);
  REQUIRE(!s.join(*mortal).ec);
  alock of_mortal(*mortal, s.at);
  std::optional<acquisition> first;
  if (!holds)
    first.emplace(s.take(s.remote));
  quitter dies;
  const auto before = s.tails();
  dies.start(of_mortal);
  s.until([&] { return s.tails() != before; });
  if (holds)
    s.until([&] { return dies.result.done; });
  if (has_given_up)
    dies.give_up();
  acquisition local, remote;
  s.queue(s.remote, remote);
  if (holds)
    s.queue(s.local, local);
  mortal.reset();
  if (first)
    first->guard.unlock();
  s.until([&] { return remote.done; });
  CHECK(remote.ec == error::owner_dead);
  CHECK(dies.result.done);
  if (holds) {
    s.until([&] { return local.done; });
    CHECK(local.ec == error::owner_dead);
  }
  for (int i = 0; i < 3; ++i) {
    CHECK(s.take(s.remote).ec == error::owner_dead);
    CHECK(s.take(s.local).ec == error::owner_dead);
  }
  const auto other = s.make<alock_words>(); // an unrelated lock
  alock next(s.guest, other);
  CHECK(s.take(next).guard);
}

TEST_CASE("an acquisition that ends without the lock leaves the lock free") {
  lock_scene s;
  if (!s.atomics())
    return;
  {
    global_memory other(s.io, s.pool, 77);
    REQUIRE(!s.join(other).ec);
    alock lock(other, s.at);
    auto held = s.take(lock);
    CHECK(!s.give_back(lock, std::move(held.guard)));
  }
  CHECK(s.take(s.remote).guard);
  CHECK(s.take(s.local).guard);
}

TEST_CASE("a connection that ends while the lock is waited for") {
  lock_scene s;
  if (!s.atomics())
    return;
  auto held = s.take(s.local);
  acquisition waits;
  s.queue(s.remote, waits);
  SECTION("by this side") {
    s.guest.close();
    s.until([&] { return waits.done; });
    CHECK(waits.ec == asio::error::operation_aborted);
  }
  SECTION("by the lock's node") {
    s.host.close();
    s.until([&] { return waits.done; });
    CHECK(waits.ec);
    CHECK(waits.ec != error::owner_dead);
  }
}

TEST_CASE("a view that closes leaves the queue of its own node") {
  lock_scene s;
  std::optional<global_memory> view(std::in_place, s.io, s.host);
  alock of_view(*view, s.at);
  auto held = s.take(s.local);
  acquisition leaves, next;
  s.queue(of_view, leaves);
  s.queue(s.local, next);
  view->close();
  s.until([&] { return leaves.done; });
  CHECK(leaves.ec == asio::error::operation_aborted);
  held.guard.unlock();
  s.until([&] { return next.done; });
  CHECK(next.guard);
}

TEST_CASE(
    "a context that is destroyed destroys its waiting party, and the party behind gets the lock") {
  lock_scene s;
  const bool granted = GENERATE(true, false);
  CAPTURE(granted);
  auto held = s.take(s.local);
  acquisition never, next;
  {
    asio::io_context other;
    global_memory view(other, s.host);
    alock of_view(view, s.at);
    s.queue(of_view, never);
    s.queue(s.local, next);
    if (granted)
      held.guard.unlock(); // the handler does not run
    s.pass_time();
    CHECK(!next.done);
  }
  CHECK(!never.done);
  held.guard.unlock();
  s.until([&] { return next.done; });
  CHECK(next.guard);
}

TEST_CASE("an object is closed at any step of taking a lock") {
  bool taken = false;
  for (int steps = 0; !taken; ++steps) {
    CAPTURE(steps);
    lock_scene s;
    if (!s.atomics())
      return;
    acquisition a;
    s.remote.async_lock(a.handler());
    for (int i = 0; i < steps && !a.done; ++i)
      s.io.run_one();
    taken = a.done;
    s.guest.close();
    s.until([&] { return a.done; });
    CHECK((a.guard || a.ec));
    REQUIRE(steps < 1000);
  }
}

TEST_CASE("a guard that its context does not outlive") {
  alock_guard late;
  {
    lock_scene s;
    auto held = s.take(s.atomics() ? s.remote : s.local);
    late = std::move(held.guard);
  }
  CHECK(late);
}

TEST_CASE("a lock can be given back although the pool is full") {
  lock_scene s;
  if (!s.atomics())
    return;
  memory_pool_options o;
  o.limit = 1 << 20;
  const memory_pool small(protection_domain(s.dev), o);
  global_memory tight(s.io, small, 77);
  REQUIRE(!s.join(tight).ec);
  alock of_tight(tight, s.at);
  auto held = s.take(of_tight);
  REQUIRE(held.guard);
  std::vector<registered_buffer> rest;
  error_code ec;
  for (std::size_t bytes = 65536; bytes >= 64; bytes /= 2)
    for (ec = {}; !ec;)
      rest.push_back(small.allocate(bytes, ec));
  acquisition next;
  s.queue(s.remote, next);
  held.guard.unlock();
  s.until([&] { return next.done; });
  CHECK(next.guard);
  // A party for which there is no memory does not enter the queue.
  acquisition first, second;
  s.queue(of_tight, first);
  of_tight.async_lock(second.handler());
  s.until([&] { return second.done; });
  CHECK(second.ec == error::pool_limit);
  next.guard.unlock();
  s.until([&] { return first.done; });
  CHECK(first.guard);
  rest.clear();
  first.guard.unlock();
  CHECK(s.take(of_tight).guard);
  s.until([&] { return s.is_free(); });
}

} // namespace test::alock_ends_tests
