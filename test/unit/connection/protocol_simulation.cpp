// SPDX-License-Identifier: BSL-1.0
// Two whole parties over links that lose nothing but have any delay. Either party may die at any
// step.
#include "protocol/party.hpp"
#include "protocol/two_sides.hpp"

#include "catch.hpp"

#include <algorithm>
#include <deque>
#include <memory>

namespace {

using namespace protocol_test;

struct totals {
  std::size_t steps = 0, worlds = 0, messages = 0, pulled = 0, direct = 0, abandoned = 0,
              regions = 0, granted = 0, notices = 0, deaths = 0, goodbyes = 0, failed = 0,
              leases_used = 0, shared = 0, beyond_promise = 0, before_goodbye = 0, grown = 0,
              gathered = 0, sent_at_once = 0, recalled = 0, yielded = 0, accesses = 0;
};

class world final : two_sides<party> {
public:
  world(std::uint32_t seed, totals& t) : two_sides(seed), total_(t) {
    ++total_.worlds;
    const std::uint32_t receives[2] = {5 + below(12), 5 + below(12)};
    // A side with shared receives is promised fewer of them, and may take a further one for one
    // that it holds.
    std::uint32_t promises[2] = {};
    for (std::size_t i = 0; i < 2; ++i)
      if (below(3) == 0)
        promises[i] = 5 + below(receives[i] - 4);
    for (std::size_t i = 0; i < 2; ++i) {
      frame_options l;
      l.receives = receives[i];
      l.peer_receives = receives[1 - i];
      l.promise = promises[i];
      l.peer_promise = promises[1 - i];
      l.receive_size = l.peer_receive_size = 128;
      l.max_receive_size = promises[i] != 0 || below(2) == 0 ? 0 : 128 + below(2500);
      l.sends = 1 + below(8);
      l.speaks_first = i == 0;
      l.waits_for_peer = i == 1;
      message_options m;
      m.limit = 2500;
      m.offers = 1 + below(6);
      m.pulls = 1 + below(4);
      m.pull_bytes = below(5000);
      m.gather = below(3) == 0 ? 0 : 8 + below(400);
      m.small = below(200);
      grant_limits g;
      g.rights = below(4) == 0 ? remote_rights::read : remote_rights::all;
      g.bytes = 200;
      g.grants = 1 + below(6);
      g.grace = std::chrono::microseconds(0);
      parties_[i] = std::make_unique<party>(l, m, g);
      parties_[i]->most_read = m.pull_bytes;
      takes_[i] = below(4) != 0;
      parties_[i]->goes_straight = [this] {
        return below(4) != 0;
      };
      parties_[i]->refuses_growth = [this] {
        return below(8) == 0;
      };
      total_.shared += promises[i] != 0;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      parties_[i]->on_pull = [this, i](const remote_buffer& memory) {
        ++total_.pulled;
        if (gone_)
          return;
        const auto k = parties_[1 - i]->keys.find(memory.address >> 32);
        must(k != parties_[1 - i]->keys.end(), "a message is read while its key lives");
        must(k->second == memory.size, "a message is read whole");
      };
      parties_[i]->run();
    }
  }

  void play(std::size_t steps) {
    const bool dies = below(3) == 0, closes = below(3) == 0;
    const auto at_least = dies ? 0 : steps / 4;
    const std::size_t end = at_least + below(static_cast<std::uint32_t>(steps));
    for (std::size_t s = 0; s < end; ++s) {
      step();
      check();
    }
    if (dies) {
      if (closes) {
        begin_close();
        for (std::uint32_t n = below(40); n != 0; --n)
          step();
      }
      // One party dies; the other notices it some time later.
      const std::size_t who = below(2);
      parties_[who]->die(asio::error::operation_aborted);
      gone_ = true;
      for (std::uint32_t n = below(20); n != 0; --n)
        step_of(1 - who);
      parties_[1 - who]->die(asio::error::connection_reset);
      ++total_.deaths;
    } else if (closes) {
      close();
    } else {
      drain();
    }
    for (std::size_t i = 0; i < 2; ++i)
      check_messages(i, !dies && !closes, !dies && !closed_[i]);
    for (const auto& p : parties_) {
      total_.messages += p->received.size();
      total_.direct += p->direct;
      total_.abandoned += p->abandoned;
      total_.regions += p->regions;
      total_.granted += p->granted;
      total_.notices += p->noticed.size();
      total_.failed += p->failed_sends;
      total_.grown += p->link.receive_size() != 128;
      total_.gathered += p->gathered;
      total_.sent_at_once += p->sent_at_once;
      total_.recalled += p->recalled;
      total_.yielded += p->yielded;
    }
  }

private:
  void step() { step_of(below(2)); }

  void step_of(std::size_t who) {
    ++total_.steps;
    party& p = *parties_[who];
    const chooser pick = [this](std::uint32_t n) {
      return below(n);
    };
    switch (below(8)) {
    case 0:
    case 1:
      if (!gone_)
        deliver(who);
      break;
    case 2:
      p.complete_send();
      break;
    case 3:
    case 4:
      if (below(4) != 0 || !end_access(who))
        p.local_step(pick);
      break;
    case 5:
      if (below(4) == 0)
        pass_time(std::chrono::microseconds(std::uint64_t(1) << below(20)));
      use_lease(who);
      if (p.shared) {
        p.shared->act(pick);
        p.run();
      }
      break;
    default:
      if (takes_[who] || below(16) == 0)
        p.act(pick);
      else
        p.send(below(200));
    }
    if (below(500) == 0)
      takes_[who] = !takes_[who];
  }

  void pass_time(std::chrono::microseconds by) {
    for (auto& p : parties_)
      p->pass_time(by);
  }

  void use_lease(std::size_t who) {
    party& p = *parties_[who];
    party& owner = *parties_[1 - who];
    const std::uint32_t id = p.some_lease([this](std::uint32_t n) { return below(n); });
    if (p.my_leases.empty() || p.leases.check(id, p.now) || gone_)
      return;
    const std::uint32_t grant = p.leases.get(id)->memory.rkey;
    must(!owner.unheard.contains(grant),
         "a grant that was revoked before it had a key is not sent to the peer");
    must(owner.grant_keys.contains(grant) || owner.may_have_ended(grant, owner.now),
         "granted memory has a key until its lease ends");
    ++total_.leases_used;
    if (accesses_[who].size() < 8)
      accesses_[who].push_back({grant, p.leases.get(id)->until, p.frames_sent});
  }

  /// The device of `who` ends its oldest access, which has used the key until now.
  bool end_access(std::size_t who) {
    if (accesses_[who].empty() || gone_)
      return false;
    const access a = accesses_[who].front();
    accesses_[who].pop_front();
    const party& owner = *parties_[1 - who];
    must(owner.grant_keys.contains(a.grant) || owner.may_have_ended(a.grant, owner.now) ||
             owner.now >= a.until,
         "a key lives until the accesses that were begun in time have ended");
    ++total_.accesses;
    return true;
  }

  /// A fenced frame begins when the accesses before it have ended, and so does a goodbye.
  bool deliver(std::size_t from) override {
    const party& p = *parties_[from];
    if (!p.wire.empty() &&
        (p.wire.front().fenced || p.wire.front().header.type == frame_type::goodbye))
      while (!accesses_[from].empty() &&
             accesses_[from].front().behind <= p.frames_sent - p.wire.size())
        if (!end_access(from))
          break;
    return two_sides::deliver(from);
  }

  void check() override {
    two_sides::check();
    for (const auto& at : parties_) {
      const party& p = *at;
      const auto& flow = p.link.flow();
      const std::size_t share = flow.share();
      if (p.shared) {
        const std::uint32_t promise = p.shared->shares.promise();
        must(share >= promise && share <= flow.receives() && flow.with_peer() <= promise,
             "a link has the receives of its promise, and its peer counts on no more");
        must(p.shared->shares.given() == share + p.shared->rival,
             "shared receives are the link's, a rival's, or unclaimed");
        total_.beyond_promise += share > promise;
      } else {
        must(p.posted.size() == flow.with_peer() + flow.owed(),
             "every posted receive is the peer's or owed to it");
      }
      must(p.grants.bytes() <= 200, "no more bytes than the limit are granted");
    }
  }

  bool local_step(std::size_t who) override {
    return parties_[who]->local_step([](std::uint32_t) { return 0U; });
  }

  /// Both applications receive everything; then nothing may be left anywhere.
  void drain() {
    settle();
    for (bool again = true; again;) {
      again = false;
      for (auto& p : parties_) {
        const std::size_t before = p->received.size() + p->noticed.size() + p->regions;
        while (!p->lent_slots.empty())
          p->let_go([](std::uint32_t) { return 0U; });
        for (int n = 0; n < 4; ++n) {
          p->receive(~std::uint64_t(0));
          p->receive(0, true);
          p->receive_region();
        }
        again |= settle();
        again |= before != p->received.size() + p->noticed.size() + p->regions;
      }
    }
    for (auto& p : parties_) {
      while (!p->my_leases.empty())
        p->release_lease(*p->my_leases.begin());
    }
    settle();
    for (auto& p : parties_) {
      must(p->link.flow().held() == 0, "no receive is held when all messages were taken");
      must(p->keys.empty(), "no message is offered when all messages were taken");
      must(p->link.sends_under_way() == 0, "no send is outstanding when the link is idle");
      const std::uint32_t promised =
          p->shared ? p->shared->shares.promise() : p->link.flow().receives();
      must(p->link.flow().with_peer() >= promised / 2, "the peer has its credits back");
      must(p->link.flow().share() == promised, "receives beyond the promise are given back");
      p->die(asio::error::operation_aborted);
    }
  }

  void begin_close() {
    const std::uint32_t who = below(3); // or both at once
    for (std::uint32_t i = 0; i < 2; ++i)
      if (who == i || who == 2) {
        parties_[i]->link.close();
        closed_[i] = true;
      }
    for (auto& p : parties_)
      p->run();
  }

  void close() {
    begin_close();
    // The other party must receive everything that is offered to it.
    for (bool again = true; again;) {
      again = false;
      for (auto& p : parties_) {
        while (!p->lent_slots.empty())
          p->let_go([](std::uint32_t) { return 0U; });
        const std::size_t before = p->received.size();
        for (int n = 0; n < 20; ++n)
          p->receive(~std::uint64_t(0));
        for (int n = 0; n < 20; ++n)
          p->receive(0, true);
        for (int n = 0; n < 20; ++n)
          p->receive_region();
        again |= settle() || p->received.size() != before;
      }
    }
    for (auto& p : parties_) {
      must(p->closed, "a goodbye is answered");
      p->die(asio::error::connection_reset);
    }
    ++total_.goodbyes;
  }

  /// Checks the messages that `i` has received: with `all`, all that were sent; with `well`, at
  /// least those that were sent successfully.
  void check_messages(std::size_t i, bool all, bool well) {
    const party& from = *parties_[1 - i];
    const party& to = *parties_[i];
    std::uint32_t next = 0;
    std::set<std::uint32_t> got;
    for (const auto& [sequence, bytes] : to.received) {
      must(sequence >= next, "messages arrive in order");
      must(from.sent_sizes.at(sequence) == bytes, "messages arrive whole");
      next = sequence + 1;
      got.insert(sequence);
    }
    next = 0;
    for (const std::uint32_t sequence : to.noticed) {
      must(sequence >= next, "notices arrive in order");
      next = sequence + 1;
    }
    if (all) {
      must(got == from.sent_well, "exactly the messages of successful sends arrive");
      must(to.noticed.size() == from.written_well.size(),
           "as many notices arrive as writes succeeded");
    } else if (well) {
      must(std::ranges::includes(got, from.sent_well),
           "the messages of successful sends arrive before the goodbye");
      must(to.noticed.size() >= from.written_well.size(),
           "the notices of successful writes arrive before the goodbye");
      total_.before_goodbye += from.sent_well.size();
    }
  }

  struct access {
    std::uint32_t grant;
    protocol_clock::time_point until; // of the lease, when the access began
    std::size_t behind;               // as many frames
  };

  totals& total_;
  std::deque<access> accesses_[2]; // under way, in order
  bool takes_[2];
  bool closed_[2] = {};
  bool gone_ = false;
};

} // namespace

TEST_CASE("two parties lose and double nothing, with any actions in any order") {
  const totals t = simulation::simulate<world, totals>(400'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds: " << t.messages << " messages received, "
               << t.pulled << " READs, " << t.direct << " messages read directly, " << t.abandoned
               << " READs abandoned, " << t.notices << " notices, " << t.granted << " grants, "
               << t.regions << " regions passed, " << t.leases_used << " uses of a lease, "
               << t.failed << " failed sends, " << t.deaths << " deaths, " << t.goodbyes
               << " goodbyes, " << t.before_goodbye << " messages before one, " << t.shared
               << " sides that share receives, " << t.beyond_promise
               << " times with more than was promised, " << t.grown
               << " sides whose receives grew, " << t.gathered << " messages that shared a frame, "
               << t.sent_at_once << " messages sent at once, " << t.recalled << " grants recalled, "
               << t.yielded << " of them confirmed, " << t.accesses << " accesses under way");
  CHECK(t.messages > t.steps / 50);
  CHECK(t.pulled > t.steps / 500);
  CHECK(t.direct > 0);
  CHECK(t.abandoned > 0);
  CHECK(t.granted > t.steps / 1000);
  CHECK(t.regions > t.steps / 1000);
  CHECK(t.leases_used > 0);
  CHECK(t.yielded > 0);
  CHECK(t.recalled > t.yielded);
  CHECK(t.accesses > 0);
  CHECK(t.deaths > 0);
  CHECK(t.goodbyes > 0);
  CHECK(t.before_goodbye > 0);
  CHECK(t.shared > 0);
  CHECK(t.beyond_promise > 0);
  CHECK(t.grown > 0);
  CHECK(t.gathered > t.steps / 1000);
  CHECK(t.sent_at_once > t.steps / 1000);
}
