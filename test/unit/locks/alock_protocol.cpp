// SPDX-License-Identifier: BSL-1.0

#include "locks/alock_protocol.hpp"
#include "catch.hpp"

#include <map>
#include <string>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using kind = alock_action::kind;
using access_kind = alock_access::kind;

constexpr alock_cohort local = alock_cohort::local, remote = alock_cohort::remote;

/// The words of one lock, from the view of one cohort.
struct words {
  std::uint64_t own = alock_free, other = alock_free, victim = 0;
  std::map<std::uint64_t, std::uint64_t> next, turn;

  std::uint64_t& at(const alock_access& a) {
    switch (a.word) {
    case alock_word::own_tail:
      return own;
    case alock_word::other_tail:
      return other;
    case alock_word::victim:
      return victim;
    case alock_word::next:
      return next[a.descriptor];
    case alock_word::turn:
      break;
    }
    return turn[a.descriptor];
  }
  void carry_out(alock_access& a) {
    std::uint64_t& word = at(a);
    a.seen = word;
    if (a.what == access_kind::write ||
        (a.what == access_kind::compare_exchange && word == a.expected))
      word = a.value;
  }
};

/// Carries out the protocol's accesses until its next action is another one. Counts the chains.
struct driver {
  words& memory;
  alock_protocol& p;
  int chains = 0;

  alock_action run() {
    for (;;) {
      const alock_action a = p.next();
      if (a.what != kind::access)
        return a;
      ++chains;
      for (alock_access& one : a.chain)
        memory.carry_out(one);
      p.on_done({});
    }
  }
  alock_action look() {
    p.look();
    return run();
  }
};

} // namespace

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

TEST_CASE("alock: while the other cohort has the lock") {
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
