// SPDX-License-Identifier: BSL-1.0
// Parties of a lock beside a liar, which writes anything to the words of the lock and of the
// descriptors of remote parties. No party excludes another one then, but each keeps its own rules.
#include "protocol/simulation.hpp"

#include "catch.hpp"
#include "locks/alock_protocol.hpp"

#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using simulation::must;
using kind = alock_action::kind;
using access_kind = alock_access::kind;

struct totals {
  std::size_t steps = 0, worlds = 0, lies = 0, held = 0, failed = 0, cancelled = 0;
};

struct party {
  alock_cohort cohort = alock_cohort::local;
  std::uint64_t descriptor = 0;
  std::unique_ptr<alock_protocol> p; // while the party takes part
  std::span<alock_access> chain;     // accesses to do
  bool told = false;                 // the party has its result, or has cancelled
};

class world {
public:
  world(std::uint32_t seed, totals& t) : random_(seed), total_(t), parties_(2 + below(5)) {
    ++total_.worlds;
    for (party& p : parties_) {
      p.cohort = below(2) == 0 ? alock_cohort::local : alock_cohort::remote;
      p.descriptor = ++descriptors_;
    }
  }

  void play(std::size_t steps) {
    for (std::size_t s = 0; s < steps; ++s) {
      ++total_.steps;
      if (below(20) == 0)
        lie();
      else
        step(parties_[below(static_cast<std::uint32_t>(parties_.size()))]);
    }
    for (party& p : parties_) {
      for (int n = 0; p.p && !p.chain.empty(); ++n) {
        must(n < 1000, "a party does not access memory for ever when nothing changes");
        access(p);
      }
      if (p.p && !p.told)
        must(p.p->cancel(), "a party without a result can be cancelled");
    }
  }

private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

  /// A value that a party may take for a descriptor, a turn, or the end of a queue.
  std::uint64_t any_word() {
    switch (below(5)) {
    case 0:
      return 0;
    case 1:
      return ~std::uint64_t(0);
    case 2:
      return below(10);
    case 3:
      return random_();
    default:
      return 1 + below(static_cast<std::uint32_t>(descriptors_) + 2);
    }
  }
  void lie() {
    ++total_.lies;
    const std::uint64_t value = any_word();
    switch (below(5)) {
    case 0:
    case 1:
      tail_[below(2)] = value;
      break;
    case 2:
      victim_ = value;
      break;
    default:
      // The words of local parties are no part of the segment.
      if (const party& of = parties_[below(static_cast<std::uint32_t>(parties_.size()))];
          of.cohort == alock_cohort::remote)
        (below(2) == 0 ? next_ : turn_)[of.descriptor] = value;
    }
  }

  void step(party& who) {
    if (!who.p) {
      who.told = false;
      who.p = std::make_unique<alock_protocol>(who.cohort, who.descriptor, 1 + below(4));
      go_on(who);
    } else if (!who.chain.empty()) {
      access(who);
    } else if (who.p->held()) {
      who.p->unlock();
      go_on(who);
    } else if (!who.told && below(8) == 0) {
      must(who.p->cancel(), "a party without a result can be cancelled");
      who.told = true;
      ++total_.cancelled;
      go_on(who);
    } else {
      if (const std::uint64_t d = who.p->waits_for(); d != 0 && below(16) == 0)
        who.p->on_dead(d); // the liar says so
      who.p->look();
      go_on(who);
    }
  }

  void go_on(party& who) {
    for (int n = 0;; ++n) {
      must(n < 10, "a party has few actions between two accesses");
      const alock_action a = who.p->next();
      switch (a.what) {
      case kind::none:
      case kind::wait:
      case kind::poll:
        return;
      case kind::access:
        must(!a.chain.empty(), "an access has a word");
        who.chain = a.chain;
        return;
      case kind::granted:
        must(!who.told, "a party has one result");
        who.told = true;
        ++total_.held;
        return;
      case kind::failed:
        must(!who.told, "a party has one result");
        must(a.ec == error::owner_dead || a.ec == error::protocol_violation,
             "an acquisition fails by what the liar did");
        who.told = true;
        ++total_.failed;
        break;
      case kind::wake:
        break; // any descriptor; the driver looks it up
      case kind::ended:
        must(who.told, "an acquisition has an end");
        who.descriptor = ++descriptors_;
        who.p.reset();
        return;
      }
    }
  }

  void access(party& who) {
    alock_access& a = who.chain.front();
    std::uint64_t unknown = 0;
    std::uint64_t& w = word(who, a, unknown);
    a.seen = w;
    if (a.what == access_kind::write ||
        (a.what == access_kind::compare_exchange && w == a.expected))
      w = a.value;
    who.chain = who.chain.subspan(1);
    if (&w == &unknown)
      who.chain = {};
    if (who.chain.empty()) {
      who.p->on_done(&w == &unknown ? error_code(error::protocol_violation) : error_code());
      go_on(who);
    }
  }
  std::uint64_t& word(const party& who, const alock_access& a, std::uint64_t& unknown) {
    const auto own = static_cast<std::size_t>(who.cohort);
    switch (a.word) {
    case alock_word::own_tail:
      return tail_[own];
    case alock_word::other_tail:
      return tail_[1 - own];
    case alock_word::victim:
      return victim_;
    case alock_word::next:
    case alock_word::turn:
      break;
    }
    // The driver knows the descriptors of its parties, and no others (alock_local.cpp).
    if (a.descriptor == 0 || a.descriptor > descriptors_)
      return unknown;
    return (a.word == alock_word::next ? next_ : turn_)[a.descriptor];
  }

  std::mt19937_64 random_;
  totals& total_;
  std::vector<party> parties_;
  std::uint64_t descriptors_ = 0;
  std::uint64_t tail_[2] = {}, victim_ = 0;
  std::map<std::uint64_t, std::uint64_t> next_, turn_;
};

} // namespace

TEST_CASE("alock: each party has one result though a liar writes to the lock") {
  const totals t = simulation::simulate<world, totals>(200'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds from seed " << simulation::first_seed()
               << ": " << t.lies << " lies, held " << t.held << " times, " << t.failed
               << " failed, " << t.cancelled << " cancelled");
  CHECK(t.lies > t.steps / 100);
  CHECK(t.held > 0);
  CHECK(t.failed > 0);
  CHECK(t.cancelled > 0);
}
