// SPDX-License-Identifier: BSL-1.0
// An owner that lends, recalls and revokes, and a peer that answers recalls truly, late, twice,
// never, or without having been asked.
#include "catch.hpp"
#include "leases/grant_table.hpp"
#include "protocol/fake_link.hpp"
#include "protocol/simulation.hpp"
#include "unit/leases/grant_sides.hpp"

#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace {

using namespace grants_test;

struct totals {
  std::size_t steps = 0, worlds = 0, recalls = 0, confirmed = 0, unconfirmed = 0, cancelled = 0,
              lies = 0, violations = 0;
};

/// The owner keeps every promise to its program, whatever the peer says.
class world {
public:
  world(std::uint32_t seed, totals& t) : random_(seed), total_(t) { ++total_.worlds; }

  void play(std::size_t steps) {
    const std::size_t end = below(static_cast<std::uint32_t>(steps));
    for (std::size_t s = 0; s != end && !owner_.failure; ++s) {
      ++total_.steps;
      step();
      work();
    }
    must(!owner_.failure || owner_.failure == error::protocol_violation, "a lie is a violation");
    must(static_cast<bool>(owner_.failure) == lied_, "nothing but a lie is a violation");
    total_.violations += lied_;
    owner_.stop(asio::error::connection_reset);
    work();
    must(recalls_.empty(), "every recall ends when the link has stopped");
    must(keys_.empty() && owner_.grants.live() == 0, "every key ends");
  }

private:
  struct recall final : recall_request {
    std::vector<std::uint32_t> all;
    protocol_clock::time_point until;
  };

  std::uint32_t below(std::size_t n) { return static_cast<std::uint32_t>(random_() % n); }
  template <class Set>
  auto some(Set& set) {
    return std::next(set.begin(), below(set.size()));
  }

  void step() {
    switch (below(14)) {
    case 0:
      return lend();
    case 1:
      return begin_recall();
    case 2:
      return cancel_recall();
    case 3:
      if (below(4) == 0 && !keys_.empty())
        owner_.grants.revoke(*some(keys_));
      return;
    case 4:
      now_ += milliseconds(below(2000));
      return owner_.grants.expire(now_);
    case 5:
    case 6:
    case 7:
    case 8:
      return hear();
    case 9:
    case 10:
      return say(frame_type::credits);
    case 11:
    case 12:
      return answer();
    default:
      if (below(20) == 0)
        lie();
    }
  }

  // --- The owner's program and driver

  void lend() {
    a_lend& op = *lends_.emplace_back(std::make_unique<a_lend>());
    op.bytes = 1 + below(100);
    op.rights = some_rights;
    op.lease = below(2) == 0 ? no_lease : microseconds(seconds(1 + below(20)));
    owner_.grants.lend(op);
  }
  void begin_recall() {
    auto op = std::make_unique<recall>();
    for (const std::uint32_t id : keys_)
      if (below(2) == 0)
        op->grants.push_back(id);
    op->all = op->grants;
    const auto grace = below(4) == 0 ? no_lease : microseconds(milliseconds(below(3000)));
    op->until = grace == no_lease ? protocol_clock::time_point::max() : now_ + grace;
    owner_.grants.recall(*op, grace, now_);
    recalls_.push_back(std::move(op));
    ++total_.recalls;
  }
  void cancel_recall() {
    if (recalls_.empty())
      return;
    const auto i = some(recalls_);
    if (!owner_.grants.cancel(**i))
      return;
    ++total_.cancelled;
    recalls_.erase(i);
  }
  void work() {
    for (grant_action a = owner_.grants.next(); a.what != make_or_end::none;
         a = owner_.grants.next()) {
      if (a.what == make_or_end::make) {
        must(keys_.insert(a.grant).second, "a grant has one key");
        owner_.grants.made(a.grant, {0x1000, a.bytes, a.grant}, now_);
      } else if (a.what == make_or_end::end) {
        must(keys_.erase(a.grant) == 1, "a key ends once");
        ended_.push_back(a.grant);
        owner_.grants.ended(a.grant);
      } else if (a.what == make_or_end::recalled) {
        completed(static_cast<recall&>(*a.recall));
      }
    }
    for (const auto& op : recalls_)
      must(now_ < op->until, "a recall ends with its grace");
  }
  void completed(recall& op) {
    for (const std::uint32_t id : op.all)
      must(!keys_.contains(id), "when a recall completes, no key of its grants lives");
    total_.unconfirmed += op.unconfirmed;
    total_.confirmed += op.count - op.unconfirmed;
    must(std::erase_if(recalls_, [&](const auto& o) { return o.get() == &op; }) == 1,
         "a recall completes once");
  }

  // --- The peer

  void hear() {
    owner_.now = now_;
    owner_.run();
    while (owner_.complete_send()) {
    }
    for (; !owner_.wire.empty(); owner_.wire.pop_front()) {
      ++owed_;
      const frame_header& h = owner_.wire.front().header;
      if (h.type == frame_type::recall) {
        asked_.insert(h.id);
        owner_asked_.insert(h.id);
      }
    }
  }
  void say(frame_type type, std::uint32_t id = 0) {
    frame_header h{.type = type, .id = id};
    h.credits = static_cast<std::uint16_t>(std::exchange(owed_, 0U));
    owner_.now = now_;
    must(owner_.arrives(frame_of(h)), "control frames find a receive");
  }
  void answer() {
    if (asked_.empty())
      return;
    const auto i = some(asked_);
    const std::uint32_t id = *i;
    if (below(8) != 0) // otherwise it may be answered again
      asked_.erase(i);
    if (below(3) != 0)
      say(frame_type::yielded, id);
  }
  void lie() {
    hear(); // so that `owner_asked_` is complete
    std::uint32_t id = below(1U << 18);
    if (const std::uint32_t what = below(4); what == 0 && !keys_.empty())
      id = *some(keys_);
    else if (what < 3 && !ended_.empty())
      id = *some(ended_);
    const bool known = keys_.contains(id);
    if (known && owner_asked_.contains(id))
      return;
    lied_ = known || (id & 0xffff) >= owner_.grants.places();
    ++total_.lies;
    say(frame_type::yielded, id);
  }

  std::mt19937 random_;
  totals& total_;
  side owner_;
  protocol_clock::time_point now_{std::chrono::hours(1)};
  std::vector<std::unique_ptr<a_lend>> lends_;
  std::vector<std::unique_ptr<recall>> recalls_;
  std::set<std::uint32_t> keys_;
  std::vector<std::uint32_t> ended_;
  std::set<std::uint32_t> asked_;       // by the owner, not answered yet
  std::set<std::uint32_t> owner_asked_; // all
  std::uint32_t owed_ = 0;              // credits
  bool lied_ = false;
};

} // namespace

TEST_CASE("recalls: an owner keeps its promises though the peer lies") {
  const totals t = simulation::simulate<world, totals>(200'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds: " << t.recalls << " recalls, "
               << t.confirmed << " grants confirmed, " << t.unconfirmed << " not, " << t.cancelled
               << " recalls cancelled, " << t.lies << " lies, " << t.violations << " violations");
  CHECK(t.confirmed > t.steps / 1000);
  CHECK(t.unconfirmed > t.steps / 1000);
  CHECK(t.cancelled > 0);
  CHECK(t.lies > t.violations);
  CHECK(t.violations > 0);
}
