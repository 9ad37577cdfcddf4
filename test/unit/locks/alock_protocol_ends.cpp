// SPDX-License-Identifier: BSL-1.0
// Acquisitions that are cancelled or fail, and parties that die.
#include "catch.hpp"
#include "locks/alock_protocol.hpp"
#include "unit/locks/alock_driver.hpp"

using namespace alock_test;

TEST_CASE("alock: a cancelled acquisition passes the lock on") {
  // The step at which it is cancelled, and the turn of its successor.
  words m;
  SECTION("not yet in the queue") {
    alock_protocol p(remote, 7, 1);
    const bool before = GENERATE(true, false);
    alock_action a = before ? alock_action{} : p.next();
    CHECK(p.cancel());
    CHECK_FALSE(p.cancel());
    if (!before) {
      a.chain.back().seen = 5;
      p.on_done({});
    }
    driver d{m, p};
    CHECK(d.run().what == kind::ended);
    CHECK(d.chains == 0);
    CHECK(p.reusable());
  }
  SECTION("just in the queue, the first of it") {
    alock_protocol p(remote, 7, 1);
    const alock_action a = p.next();
    CHECK(p.cancel());
    for (alock_access& one : a.chain)
      m.carry_out(one);
    p.on_done({});
    driver d{m, p};
    CHECK(d.run().what == kind::ended);
    CHECK(m.own == alock_free);
    CHECK(m.victim == 0);
  }
  SECTION("behind another") {
    const std::uint64_t turn =
        GENERATE(as<std::uint64_t>(), alock_turn::contend, alock_turn::contend + 3);
    m.own = 5;
    m.other = 3;
    alock_protocol p(remote, 7, 9);
    driver d{m, p};
    REQUIRE(d.run().what == kind::wait);
    CHECK(p.cancel());
    CHECK(d.run().what == kind::wait);
    m.own = 8;
    m.next[7] = 8;
    m.turn[7] = turn;
    const alock_action a = d.look();
    CHECK(a.what == kind::wake);
    CHECK(a.descriptor == 8);
    CHECK(m.turn[8] == turn); // not used
    CHECK(m.victim == 0);
    CHECK(d.run().what == kind::ended);
    CHECK(p.reusable());
  }
  SECTION("while the other cohort has the lock") {
    m.other = 3;
    alock_protocol p(local, 7, 9);
    driver d{m, p};
    REQUIRE(d.run().what == kind::poll);
    m.own = 8;
    m.next[7] = 8;
    CHECK(p.cancel());
    CHECK(d.run().what == kind::wake);
    CHECK(m.turn[8] == alock_turn::contend);
  }
  SECTION("while it looks, and would have got it") {
    m.other = 3;
    alock_protocol p(local, 7, 9);
    driver d{m, p};
    REQUIRE(d.run().what == kind::poll);
    p.look();
    const alock_action a = p.next();
    REQUIRE(a.what == kind::access);
    m.other = alock_free;
    for (alock_access& one : a.chain)
      m.carry_out(one);
    CHECK(p.cancel());
    p.on_done({});
    CHECK(d.run().what == kind::ended);
    CHECK(m.own == alock_free);
  }
  SECTION("too late") {
    alock_protocol p(local, 7, 1);
    driver d{m, p};
    REQUIRE(d.run().what == kind::granted);
    CHECK_FALSE(p.cancel());
    CHECK(p.held());
  }
}

TEST_CASE("alock: a party that waits for a dead one gets owner_dead, and so do those behind it") {
  words m;
  m.own = 5;
  alock_protocol p(remote, 7, 1);
  driver d{m, p};
  REQUIRE(d.run().what == kind::wait);
  REQUIRE(p.waits_for() == 5);
  SECTION("the last of the queue leaves it abandoned") {
    p.on_dead(5);
    const alock_action a = d.run();
    CHECK(a.what == kind::failed);
    CHECK(a.ec == error::owner_dead);
    CHECK(d.run().what == kind::ended);
    CHECK(m.own == alock_abandoned);
    CHECK_FALSE(p.reusable()); // accesses of the dead party may still arrive
    alock_protocol late(remote, 8, 1);
    driver l{m, late};
    CHECK(l.run().ec == error::owner_dead);
    CHECK(l.run().what == kind::ended);
    CHECK(m.own == alock_abandoned);
    CHECK(late.reusable());
  }
  SECTION("the party behind learns it from its predecessor") {
    alock_protocol behind(remote, 8, 1);
    driver b{m, behind};
    REQUIRE(b.run().what == kind::wait);
    p.on_dead(5);
    CHECK(d.run().what == kind::failed);
    CHECK(d.run().what == kind::wake);
    CHECK(m.turn[8] == alock_turn::dead);
    CHECK(d.run().what == kind::ended);
    CHECK_FALSE(p.reusable());
    CHECK(b.look().ec == error::owner_dead);
    CHECK(b.run().what == kind::ended);
    CHECK(m.own == alock_abandoned);
  }
  SECTION("a lock that the dead party had handed over is granted") {
    m.turn[7] = alock_turn::contend + 1;
    p.on_dead(5);
    CHECK(d.run().what == kind::granted);
  }
  SECTION("a turn that was read before the death was known is read again") {
    p.look();
    const alock_action a = p.next();
    for (alock_access& one : a.chain)
      m.carry_out(one);
    m.turn[7] = alock_turn::contend + 1;
    p.on_dead(5);
    p.on_done({});
    CHECK(d.run().what == kind::granted);
  }
  SECTION("a cancelled party leaves too") {
    CHECK(p.cancel());
    p.on_dead(5);
    CHECK(d.run().what == kind::ended);
    CHECK(m.own == alock_abandoned);
  }
}

TEST_CASE("alock: the local cohort learns that a remote party is dead") {
  words m;
  m.other = 3;
  alock_protocol p(local, 7, 1);
  driver d{m, p};
  REQUIRE(d.run().what == kind::poll);
  REQUIRE(p.waits_for() == 3);
  SECTION("from the tail's party") {
    p.on_dead(3);
    CHECK(d.run().ec == error::owner_dead);
  }
  SECTION("from the tail that the last party has marked as abandoned") {
    m.other = alock_abandoned;
    CHECK(d.look().ec == error::owner_dead);
  }
  SECTION("not while other parties are behind the dead one") {
    m.other = 4;
    p.on_dead(3);
    CHECK(d.run().what == kind::poll);
    CHECK(p.waits_for() == 4);
    return;
  }
  SECTION("and gets the lock if the dead cohort is the victim") {
    m.victim = 1;
    p.on_dead(3);
    CHECK(d.run().what == kind::granted);
    return;
  }
  CHECK(d.run().what == kind::ended);
  CHECK(m.own == alock_free); // the next party finds that out by itself
  CHECK(m.other != alock_free);
  CHECK(p.reusable());
}

TEST_CASE("alock: an access that fails ends the acquisition") {
  const error_code broken = asio::error::connection_reset;
  const int after = GENERATE(0, 1, 2, 3, 4);
  INFO(after);
  words m;
  m.own = 5;
  m.turn[7] = alock_turn::wait;
  alock_protocol p(remote, 7, 1);
  bool granted = false;
  int chains = 0;
  for (;;) {
    const alock_action a = p.next();
    if (a.what == kind::wait) {
      m.turn[7] = alock_turn::contend + 1;
      p.look();
    } else if (a.what == kind::granted) {
      granted = true;
      p.unlock();
    } else if (a.what == kind::access) {
      if (chains++ == after) {
        p.on_done(broken);
        break;
      }
      for (alock_access& one : a.chain)
        m.carry_out(one);
      p.on_done({});
    }
  }
  alock_action a = p.next();
  if (!granted) {
    CHECK(a.what == kind::failed);
    CHECK(a.ec == broken);
    a = p.next();
  }
  CHECK(a.what == kind::ended);
  CHECK_FALSE(p.reusable());
}

TEST_CASE(
    "alock: a party whose access is refused may be in a queue, except before its first access") {
  const error_code refused = error::pool_limit;
  const int after = GENERATE(0, 1, 2, 3);
  INFO(after);
  words m;
  m.own = 5;
  m.turn[7] = alock_turn::contend;
  alock_protocol p(remote, 7, 1);
  for (int chains = 0;;) {
    const alock_action a = p.next();
    if (a.what == kind::wait) {
      p.look();
      continue;
    }
    REQUIRE(a.what == kind::access);
    if (chains++ == after)
      break;
    for (alock_access& one : a.chain)
      m.carry_out(one);
    p.on_done({});
  }
  const bool entered = m.own == 7;
  CHECK(p.on_refused(refused) == !entered);
  CHECK(p.reusable() == !entered);
  const alock_action a = p.next();
  CHECK(a.what == kind::failed);
  CHECK(a.ec == refused);
  CHECK(p.next().what == kind::ended);
}
