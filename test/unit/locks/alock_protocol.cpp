// SPDX-License-Identifier: BSL-1.0
// The steps of an acquisition, and the order of its accesses.
#include "locks/alock_protocol.hpp"
#include "catch.hpp"
#include "unit/locks/alock_driver.hpp"

using namespace alock_test;

TEST_CASE("alock: a free lock takes two chains, and one to give back") {
  words m;
  alock_protocol p(remote, 7, 3);
  driver d{m, p};
  CHECK(d.run().what == kind::granted);
  CHECK(d.chains == 2);
  CHECK(m.own == 7);
  CHECK(m.victim == 1);
  CHECK(p.held());
  CHECK(p.next().what == kind::none);
  p.unlock();
  CHECK_FALSE(p.held());
  CHECK(d.run().what == kind::ended);
  CHECK(d.chains == 3);
  CHECK(m.own == alock_free);
  CHECK(p.reusable());
}

TEST_CASE("alock: the descriptor is clean before it is in the queue") {
  words m;
  m.next[7] = 5;
  m.turn[7] = 9;
  alock_protocol p(local, 7, 1);
  const alock_action a = p.next();
  REQUIRE(a.what == kind::access);
  REQUIRE(a.chain.size() == 3);
  CHECK(a.chain[2].what == access_kind::compare_exchange);
  CHECK(p.next().what == kind::none); // nothing more until the chain is done
  for (alock_access& one : a.chain.first(2))
    m.carry_out(one);
  CHECK(m.next[7] == 0);
  CHECK(m.turn[7] == alock_turn::wait);
  CHECK(m.own == alock_free);
}

TEST_CASE("alock: the victim is written before the other tail is read") {
  words m;
  m.other = 3;
  alock_protocol p(remote, 7, 1);
  alock_action a = p.next();
  for (alock_access& one : a.chain)
    m.carry_out(one);
  p.on_done({});
  a = p.next();
  REQUIRE(a.chain.size() == 2);
  CHECK(a.chain[0].what == access_kind::write);
  CHECK(a.chain[0].word == alock_word::victim);
  CHECK(a.chain[0].value == 1);
  CHECK(a.chain[1].what == access_kind::read);
  CHECK(a.chain[1].word == alock_word::other_tail);
}

TEST_CASE("alock: a party polls while the other cohort has the lock") {
  struct row {
    std::uint64_t tail, victim;
    kind expected;
  };
  const auto cohort = GENERATE(local, remote);
  const auto me = static_cast<std::uint64_t>(cohort);
  const row r = GENERATE_COPY(row{3, me, kind::poll}, row{4, me, kind::poll},
                              row{alock_free, me, kind::granted}, row{3, 1 - me, kind::granted});
  INFO(me << ' ' << r.tail << ' ' << r.victim);
  words m;
  m.other = 3;
  alock_protocol p(cohort, 7, 1);
  driver d{m, p};
  REQUIRE(d.run().what == kind::poll);
  CHECK(m.victim == me);
  CHECK(d.run().what == kind::poll);
  m.other = r.tail;
  m.victim = r.victim;
  CHECK(d.look().what == r.expected);
}

TEST_CASE("alock: a party that is not the first links itself and waits") {
  words m;
  m.own = 5;
  alock_protocol p(remote, 7, 1);
  driver d{m, p};
  CHECK(d.run().what == kind::wait);
  CHECK(d.chains == 3); // one chain more to find the tail's value
  CHECK(m.own == 7);
  CHECK(m.next[5] == 7);
  CHECK(p.waits_for() == 5);
  CHECK(d.look().what == kind::wait);
  m.turn[7] = alock_turn::contend + 2;
  CHECK(d.look().what == kind::granted);
  CHECK(m.victim == 0); // the cohort had the lock
  p.unlock();
  CHECK(d.run().what == kind::ended);
}

TEST_CASE("alock: a wake-up that comes early is not lost") {
  words m;
  m.own = 5;
  alock_protocol p(local, 8, 1);
  driver d{m, p};
  for (int chain = 0; chain < 3; ++chain) { // entered the queue at the second try, and linked
    const alock_action a = p.next();
    REQUIRE(a.what == kind::access);
    for (alock_access& one : a.chain)
      m.carry_out(one);
    if (m.next[5] == 8) { // now its predecessor knows it
      m.turn[8] = alock_turn::contend + 1;
      p.look();
    }
    p.on_done({});
  }
  CHECK(d.run().what == kind::granted);
}

TEST_CASE("alock: the lock is handed over with the rest of the budget") {
  const std::uint32_t budget = GENERATE(1u, 2u, 5u);
  words m;
  alock_protocol p(local, 7, budget);
  driver d{m, p};
  REQUIRE(d.run().what == kind::granted);
  m.own = 8;
  m.next[7] = 8;
  p.unlock();
  const alock_action a = d.run();
  CHECK(a.what == kind::wake);
  CHECK(a.descriptor == 8);
  CHECK(m.turn[8] == alock_turn::contend + budget - 1);
  CHECK(m.own == 8);
  CHECK(d.run().what == kind::ended);
  CHECK(p.reusable());
  CHECK(d.chains == 4);
}

TEST_CASE("alock: a party that gets no budget contends, and then has a new budget") {
  words m;
  m.own = 5;
  m.other = 3;
  alock_protocol p(remote, 7, 4);
  driver d{m, p};
  d.run();
  m.turn[7] = alock_turn::contend;
  CHECK(d.look().what == kind::poll);
  CHECK(m.victim == 1);
  CHECK(p.waits_for() == 0); // the other cohort is on this machine
  m.victim = 0;
  CHECK(d.look().what == kind::granted);
  m.own = 8;
  m.next[7] = 8;
  p.unlock();
  CHECK(d.run().what == kind::wake);
  CHECK(m.turn[8] == alock_turn::contend + 3);
}

TEST_CASE("alock: a successor that is not linked yet is waited for") {
  words m;
  alock_protocol p(remote, 7, 2);
  driver d{m, p};
  d.run();
  m.own = 9;
  p.unlock();
  CHECK(d.run().what == kind::poll);
  CHECK(d.look().what == kind::poll);
  CHECK(p.waits_for() == 0);
  m.next[7] = 8;
  CHECK(d.look().what == kind::wake);
  CHECK(m.turn[8] == alock_turn::contend + 1);
  CHECK(m.own == 9);
}

TEST_CASE("alock: the exchange of the tail is repeated with the value that was seen") {
  words m;
  alock_protocol p(remote, 7, 1);
  for (const std::uint64_t seen : {4u, 5u, 6u}) {
    const alock_action a = p.next();
    REQUIRE(a.what == kind::access);
    alock_access& exchange = a.chain.back();
    CHECK(exchange.expected == (seen == 4 ? alock_free : seen - 1));
    exchange.seen = seen;
    p.on_done({});
  }
  m.own = 6;
  driver d{m, p};
  CHECK(d.run().what == kind::wait);
  CHECK(m.next[6] == 7);
}
