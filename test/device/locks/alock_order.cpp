// SPDX-License-Identifier: BSL-1.0
// The order in which parties get the asymmetric lock.
#include "catch.hpp"
#include "device/locks/alock_support.hpp"

#include <deque>
#include <string>

namespace test::alock_order_tests {
namespace {

/// Parties that record the order in which they held the lock.
struct order {
  explicit order(lock_scene& s) : scene(s) {}

  void queue(alock& lock, char name) {
    const auto before = scene.tails();
    ++waiting;
    lock.async_lock([this, name](error_code ec, alock_guard g) {
      CHECK(!ec);
      CHECK(g);
      names += name;
      --waiting;
    });
    scene.until([&] { return scene.tails() != before; });
  }
  void finish() {
    scene.until([&] { return waiting == 0 && scene.is_free(); });
  }

  lock_scene& scene;
  std::string names;
  int waiting = 0;
};

} // namespace

TEST_CASE("first come, first served within a cohort") {
  lock_scene s;
  if (!s.atomics())
    return;
  const bool local = GENERATE(true, false), held_by_local = GENERATE(true, false);
  CAPTURE(local, held_by_local);
  order o(s);
  auto held = s.take(held_by_local ? s.local : s.remote);
  for (char name = 'a'; name < 'm'; ++name)
    o.queue(local ? s.local : s.remote, name);
  CHECK(o.names.empty());
  held.guard.unlock();
  o.finish();
  CHECK(o.names == "abcdefghijkl");
}

TEST_CASE("a cohort has the lock as often in a row as its budget says, if the other waits") {
  lock_scene s;
  if (!s.atomics())
    return;
  const bool locals = GENERATE(true, false);
  const int budget = GENERATE(1, 2, 5);
  CAPTURE(locals, budget);
  alock_options options;
  (locals ? options.local_budget : options.remote_budget) = static_cast<std::uint32_t>(budget);
  alock many(locals ? s.host : s.guest, s.at, options);
  order o(s);
  auto held = s.take(many); // the first of the row
  o.queue(locals ? s.remote : s.local, 'x');
  s.pass_time(); // the other party has written the victim word
  for (int i = 0; i < 2 * budget + 1; ++i)
    o.queue(many, 'm');
  held.guard.unlock();
  o.finish();
  CHECK(o.names.find('x') == std::size_t(budget - 1));
}

TEST_CASE("locks are nested, and a coroutine may wait while it has one") {
  lock_scene s;
  if (!s.atomics())
    return;
  const auto other = s.make<alock_words>();
  alock first(s.guest, other), second(s.host, other);
  auto a = s.take(s.remote), b = s.take(first);
  CHECK(a.guard);
  CHECK(b.guard);
  acquisition c, d;
  s.local.async_lock(c.handler());
  second.async_lock(d.handler());
  b.guard.unlock();
  s.until([&] { return d.done; });
  CHECK(d.guard);
  CHECK(!c.done);
  a.guard.unlock();
  s.until([&] { return c.done; });
  CHECK(c.guard);
}

} // namespace test::alock_order_tests
