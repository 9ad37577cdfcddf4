// SPDX-License-Identifier: BSL-1.0
// Local and remote parties that take one lock, one access to memory at a time in any order. Some
// parties cancel, some die. The device's compare-and-exchange is two accesses, and the CPU may
// access memory in between. If the device does not exchange, it writes the old value back, as rxe
// does.
#include "protocol/simulation.hpp"

#include "catch.hpp"
#include "locks/alock_protocol.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using simulation::must;
using kind = alock_action::kind;
using access_kind = alock_access::kind;

struct totals {
  std::size_t steps = 0, worlds = 0, held = 0, handed_over = 0, contended = 0, cancelled = 0,
              deaths = 0, owner_dead = 0;
};

struct party {
  alock_cohort cohort = alock_cohort::local;
  std::uint64_t descriptor = 0;
  std::unique_ptr<alock_protocol> p; // while the party takes part
  std::span<alock_access> chain;     // accesses to do
  kind stays = kind::none;           // `wait` or `poll`
  bool half = false;                 // one access of a compare-and-exchange is done
  bool told = false;                 // the party has its result, or has cancelled
  bool dead = false;
  std::size_t place = 0; // in the order of the cohort's queue
};

class world {
public:
  world(std::uint32_t seed, totals& t) : random_(seed), total_(t) {
    ++total_.worlds;
    const std::uint32_t locals = below(4), remotes = 1 + below(4);
    parties_.resize(locals + remotes);
    for (std::size_t i = 0; i < parties_.size(); ++i) {
      parties_[i].cohort = i < locals ? alock_cohort::local : alock_cohort::remote;
      parties_[i].descriptor = ++descriptors_;
      party_of_[parties_[i].descriptor] = i;
    }
    for (std::uint32_t& b : budget_)
      b = 1 + below(4);
    mortal_ = below(3) == 0;
    messages_ = below(2) == 0;
  }

  void play(std::size_t steps) {
    for (std::size_t s = 0; s < steps; ++s)
      step(parties_[below(static_cast<std::uint32_t>(parties_.size()))], true);
    // All acquisitions end once no new one begins.
    for (std::size_t s = 0; !at_rest(); ++s) {
      must(s < 100'000, "a waiting party gets the lock or owner_dead");
      step(parties_[below(static_cast<std::uint32_t>(parties_.size()))], false);
    }
    if (mortal_ && died_)
      return;
    for (const party& p : parties_)
      must(!p.p, "a party that has left has ended");
    must(tail_[0] == alock_free && tail_[1] == alock_free,
         "the lock is free when no party is left");
  }

private:
  std::uint32_t below(std::uint32_t n) {
    return n == 0 ? 0 : static_cast<std::uint32_t>(random_() % n);
  }

  bool at_rest() const {
    return std::all_of(parties_.begin(), parties_.end(), [](const party& p) {
      // A party that has left may wait for a successor that has died.
      return p.dead || !p.p || (p.told && !p.p->held() && p.stays == kind::poll);
    });
  }

  void step(party& who, bool more) {
    ++total_.steps;
    if (who.dead)
      return;
    if (mortal_ && more && who.cohort == alock_cohort::remote && below(400) == 0)
      return die(who);
    if (!who.p) {
      if (more && below(3) == 0)
        begin(who);
    } else if (!who.chain.empty()) {
      access(who);
    } else if (who.p->held()) {
      if (below(2) == 0)
        unlock(who);
    } else if (!who.told && below(30) == 0) {
      must(who.p->cancel(), "a party without a result can be cancelled");
      who.told = true;
      ++total_.cancelled;
      go_on(who);
    } else {
      look(who);
    }
  }

  void begin(party& who) {
    who.p = std::make_unique<alock_protocol>(who.cohort, who.descriptor, budget_of(who));
    who.told = false;
    who.place = 0;
    go_on(who);
  }

  void unlock(party& who) {
    must(inside_ == &who, "only the holder unlocks");
    must(words_[0] == words_[1] && words_[1] == words_[2],
         "three words are changed by one party at a time");
    for (std::size_t& w : words_)
      ++w;
    inside_ = nullptr;
    who.p->unlock();
    go_on(who);
  }

  void look(party& who) {
    if (const std::uint64_t d = who.p->waits_for(); d != 0 && d != alock_abandoned) {
      if (parties_[party_of_.at(d)].dead && below(4) == 0) {
        who.p->on_dead(d);
        return go_on(who);
      }
    }
    // Local parties are woken; remote parties only if messages reach them.
    if (who.stays == kind::wait && (messages_ || who.cohort == alock_cohort::local))
      return;
    who.p->look();
    go_on(who);
  }

  void die(party& who) {
    who.dead = died_ = true;
    if (who.half) // the device ends its access
      access(who);
    ++total_.deaths;
    who.p.reset();
    who.chain = {};
    // `inside_` stays set: no other party may enter.
  }

  void go_on(party& who) {
    for (;;) {
      const alock_action a = who.p->next();
      who.stays = a.what;
      switch (a.what) {
      case kind::none:
      case kind::wait:
      case kind::poll:
        return;
      case kind::access:
        who.chain = a.chain;
        return;
      case kind::granted:
        enter(who);
        return;
      case kind::failed:
        must(!who.told, "an acquisition ends once");
        must(a.ec == error::owner_dead && died_, "an acquisition fails only if a party has died");
        who.told = true;
        ++total_.owner_dead;
        break;
      case kind::wake:
        if (party& to = parties_[party_of_.at(a.descriptor)];
            (messages_ || to.cohort == alock_cohort::local) && !to.dead) {
          must(to.p != nullptr, "a party that is woken has an acquisition");
          to.p->look();
          if (to.chain.empty())
            go_on(to);
        }
        break;
      case kind::ended:
        must(who.told, "an acquisition has an end");
        if (!who.p->reusable()) {
          who.descriptor = ++descriptors_;
          party_of_[who.descriptor] = static_cast<std::size_t>(&who - parties_.data());
        }
        who.p.reset();
        return;
      }
    }
  }

  void enter(party& who) {
    must(inside_ == nullptr, "one party at a time has the lock");
    must(!who.told, "a cancelled acquisition does not get the lock");
    inside_ = &who;
    who.told = true;
    const auto mine = index(who), theirs = 1 - mine;
    must(who.place > last_[mine], "first come, first served within a cohort");
    last_[mine] = who.place;
    contends_[mine] = false;
    if (contends_[theirs]) {
      ++passed_by_[theirs];
      must(passed_by_[theirs] <= budget_[mine],
           "a cohort has no more critical sections in a row than its budget");
    }
    ++total_.held;
  }

  static std::size_t index(const party& who) { return static_cast<std::size_t>(who.cohort); }
  std::uint32_t budget_of(const party& who) const { return budget_[index(who)]; }

  std::uint64_t& word(const party& who, const alock_access& a) {
    switch (a.word) {
    case alock_word::own_tail:
      return tail_[index(who)];
    case alock_word::other_tail:
      return tail_[1 - index(who)];
    case alock_word::victim:
      return victim_;
    case alock_word::next:
      return next_[a.descriptor];
    case alock_word::turn:
      break;
    }
    return turn_[a.descriptor];
  }

  void access(party& who) {
    alock_access& a = who.chain.front();
    std::uint64_t& w = word(who, a);
    if (a.what == access_kind::write) {
      w = a.value;
      if (a.word == alock_word::victim) {
        contends_[index(who)] = true;
        passed_by_[index(who)] = 0;
        ++total_.contended;
      } else if (a.word == alock_word::turn && a.descriptor != who.descriptor) {
        leaves(who);
        ++total_.handed_over;
      }
    } else if (a.what == access_kind::read) {
      a.seen = w;
    } else if (who.cohort == alock_cohort::remote && !who.half) {
      if (device_busy_)
        return;
      device_busy_ = who.half = true;
      a.seen = w;
      return;
    } else {
      if (who.cohort == alock_cohort::local)
        a.seen = w;
      else
        device_busy_ = who.half = false;
      w = a.seen == a.expected ? a.value : a.seen;
      if (a.seen == a.expected && a.value == who.descriptor)
        who.place = ++places_[index(who)];
      else if (a.seen == a.expected)
        leaves(who);
    }
    who.chain = who.chain.subspan(1);
    if (who.chain.empty() && !who.dead) {
      who.p->on_done({});
      go_on(who);
    }
  }

  /// The next head of the party's queue contends anew, if it must.
  void leaves(const party& who) { contends_[index(who)] = false; }

  std::mt19937 random_;
  totals& total_;
  std::vector<party> parties_;
  std::map<std::uint64_t, std::size_t> party_of_; // by descriptor
  std::uint64_t descriptors_ = 0;
  std::uint32_t budget_[2];
  bool mortal_, died_ = false, messages_;

  std::uint64_t tail_[2] = {}, victim_ = 0;
  std::map<std::uint64_t, std::uint64_t> next_, turn_;
  bool device_busy_ = false;

  const party* inside_ = nullptr;
  std::size_t words_[3] = {};
  std::size_t places_[2] = {}, last_[2] = {};
  bool contends_[2] = {};
  std::uint32_t passed_by_[2] = {};
};

} // namespace

TEST_CASE(
    "alock: parties have the lock one at a time, in order, within the budget, and each gets it") {
  const totals t = simulation::simulate<world, totals>(400'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds: held " << t.held << " times, handed over "
               << t.handed_over << " times, contended " << t.contended << " times, " << t.cancelled
               << " cancelled, " << t.deaths << " died, " << t.owner_dead << " got owner_dead");
  CHECK(t.held > t.steps / 50);
  CHECK(t.handed_over > t.steps / 200);
  CHECK(t.contended > t.steps / 200);
  CHECK(t.cancelled > t.steps / 1000);
  CHECK(t.deaths > 0);
  CHECK(t.owner_dead > 0);
}
