// SPDX-License-Identifier: BSL-1.0
// Grants that the owner recalls, so that the peer may finish its accesses.
#include "catch.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "protocol/fake_link.hpp"
#include "unit/leases/grant_sides.hpp"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace {

using namespace grants_test;

/// An owner that recalls grants.
struct recalling : two {
  void recall(a_recall& op, std::initializer_list<std::uint32_t> which,
              microseconds grace = seconds(5)) {
    op.grants = which;
    owner.grants.recall(op, grace, now);
  }
  void from_owner() {
    while (carry(owner, user)) {
    }
  }
  void from_user() {
    while (carry(user, owner)) {
    }
  }
  /// Whether the recall has completed, with these counts.
  void completes(a_recall& op, std::size_t count, std::size_t unconfirmed) {
    const grant_action a = owner.grants.next();
    REQUIRE(a.what == make_or_end::recalled);
    CHECK(a.recall == &op);
    CHECK(op.count == count);
    CHECK(op.unconfirmed == unconfirmed);
  }
  void waits() { CHECK(owner.grants.next().what == make_or_end::none); }
  std::size_t count(frame_type t) const {
    return static_cast<std::size_t>(std::count(frames.begin(), frames.end(), t));
  }
};

} // namespace

TEST_CASE("recalls: the key ends when the peer has confirmed, and the peer uses it no more") {
  recalling t;
  const remote_lease l = t.granted();
  a_recall op;
  t.recall(op, {t.number});
  t.waits();
  CHECK(!t.user.leases.check(l.id, t.now));
  t.from_owner();
  CHECK(t.user.leases.check(l.id, t.now) == error::lease_revoked);
  t.waits();
  t.user.run();
  REQUIRE(t.user.wire.size() == 1);
  CHECK(t.user.wire.front().header.type == frame_type::yielded);
  CHECK(t.user.wire.front().fenced); // behind the READs that are under way
  t.from_user();
  t.ends(t.number);
  t.completes(op, 1, 0);
  CHECK(!op.ec);
  t.user.leases.release(l.id);
  t.exchange();
  CHECK(t.frames.back() == frame_type::yielded); // so there is no release
  CHECK(t.owner.grants.live() == 0);
  CHECK(!t.failure());
}

TEST_CASE("recalls: of a peer that does not confirm, the key ends with the grace") {
  recalling t;
  (void)t.granted(100, seconds(20));
  a_recall op;
  t.recall(op, {t.number}, seconds(5));
  CHECK(t.owner.grants.next_expiry() == t.now + seconds(5));
  t.from_owner();
  t.now += seconds(5) - microseconds(1);
  t.owner.grants.expire(t.now);
  t.waits();
  t.now += microseconds(1);
  t.owner.grants.expire(t.now);
  t.ends(t.number);
  t.completes(op, 1, 1);
  t.exchange(); // the confirmation comes too late
  CHECK(!t.failure());
  CHECK(t.count(frame_type::ended) == 0); // the peer knows
}

TEST_CASE("recalls: the end of the lease comes first if it is earlier") {
  recalling t;
  (void)t.granted(100, seconds(1));
  a_recall op;
  t.recall(op, {t.number}, GENERATE(microseconds(seconds(50)), no_lease));
  CHECK(t.owner.grants.next_expiry() == t.now + milliseconds(1500));
  t.now += milliseconds(1500);
  t.owner.grants.expire(t.now);
  t.ends(t.number);
  t.completes(op, 1, 1);
}

TEST_CASE("recalls: without grace the key ends at once") {
  recalling t;
  const remote_lease l = t.granted();
  a_recall op;
  t.recall(op, {t.number}, GENERATE(microseconds(0), microseconds(-1)));
  t.ends(t.number);
  t.completes(op, 1, 1);
  t.exchange();
  CHECK(t.frames.back() == frame_type::ended);
  CHECK(t.user.leases.check(l.id, t.now) == error::lease_revoked);
}

TEST_CASE("recalls: a recall that is not sent before the key ends tells the end instead") {
  recalling t;
  const remote_lease l = t.granted();
  a_recall op;
  t.recall(op, {t.number}, seconds(1));
  const bool by_revoke = GENERATE(false, true);
  if (by_revoke) {
    CHECK(t.owner.grants.revoke(t.number));
  } else {
    t.now += seconds(1);
    t.owner.grants.expire(t.now);
  }
  t.ends(t.number);
  t.completes(op, 1, 1);
  t.exchange();
  CHECK(t.frames.back() == frame_type::ended);
  CHECK(t.count(frame_type::recall) == 0);
  CHECK(t.user.leases.check(l.id, t.now) == error::lease_revoked);
}

TEST_CASE("recalls: two of the same grant both wait for its end, and the earlier grace counts") {
  recalling t;
  (void)t.granted();
  a_recall first, second;
  t.recall(first, {t.number}, milliseconds(300));
  t.recall(second, {t.number}, GENERATE(milliseconds(200), milliseconds(400)));
  CHECK(t.owner.grants.next_expiry() <= t.now + milliseconds(300));
  const bool confirms = GENERATE(false, true);
  t.from_owner();
  CHECK(t.count(frame_type::recall) == 1);
  if (confirms) {
    t.from_user();
  } else {
    t.now += milliseconds(300);
    t.owner.grants.expire(t.now);
  }
  t.ends(t.number);
  t.completes(first, 1, confirms ? 0 : 1);
  t.completes(second, 1, confirms ? 0 : 1);
}

TEST_CASE("recalls: a revocation ends the wait for the peer") {
  recalling t;
  (void)t.granted();
  a_recall op;
  t.recall(op, {t.number});
  t.from_owner();
  CHECK(t.owner.grants.revoke(t.number));
  CHECK(!t.owner.grants.revoke(t.number));
  t.ends(t.number);
  t.completes(op, 1, 1);
  t.exchange();
  CHECK(t.count(frame_type::ended) == 0);
  CHECK(!t.failure());
}

TEST_CASE("recalls: several grants, of which one has ended and another is ending") {
  recalling t;
  std::vector<std::uint32_t> numbers;
  std::vector<remote_lease> leases;
  for (int i = 0; i != 3; ++i) {
    leases.push_back(t.granted(10));
    numbers.push_back(t.number);
  }
  t.user.leases.release(leases[0].id);
  t.exchange();
  t.ends(numbers[0]);
  t.user.leases.release(leases[1].id);
  t.exchange();
  a_recall op;
  t.recall(op, {numbers[0], numbers[1], numbers[2]});
  t.ends(numbers[1]);
  t.waits();
  t.exchange();
  t.ends(numbers[2]);
  t.completes(op, 2, 0);
}

TEST_CASE("recalls: without a grant the recall completes at once") {
  recalling t;
  a_recall op;
  t.recall(op, {7});
  t.completes(op, 0, 0);
  t.exchange();
  CHECK(t.frames.empty());
}

TEST_CASE("recalls: a release or a return that crosses the recall is the answer") {
  recalling t;
  const remote_lease l = t.granted();
  const bool returns = GENERATE(false, true);
  a_lease gift;
  if (returns) {
    gift.what = lease_request::kind::give;
    gift.id = l.id;
    t.user.leases.start(gift, t.now);
  } else {
    t.user.leases.release(l.id);
  }
  t.user.run();
  a_recall op;
  t.recall(op, {t.number});
  t.from_owner();
  t.from_user();
  CHECK(t.count(frame_type::yielded) == 0);
  t.ends(t.number);
  t.completes(op, 1, 0);
  if (returns) {
    a_wait wait;
    t.owner.inbox.receive(wait);
    REQUIRE(t.owner.inbox.next() == &wait);
    CHECK(wait.returned);
  }
  t.exchange();
  CHECK(!t.failure());
}

TEST_CASE("recalls: a renewal of a recalled grant is denied") {
  recalling t;
  const remote_lease l = t.granted();
  a_lease renewal;
  renewal.what = lease_request::kind::renew;
  renewal.id = l.id;
  renewal.lease = seconds(5);
  a_recall op;
  const bool crosses = GENERATE(false, true);
  t.recall(op, {t.number}, milliseconds(200));
  if (!crosses)
    t.from_owner();
  t.user.leases.start(renewal, t.now);
  if (crosses)
    t.from_user();
  CHECK(t.owner.grants.next_expiry() == t.now + milliseconds(200)); // the grace is not extended
  t.exchange();
  REQUIRE(t.user.leases.next() == &renewal);
  CHECK(renewal.ec == error::lease_revoked);
  t.ends(t.number);
  t.completes(op, 1, 0);
}

TEST_CASE("recalls: a grant that has not reached the peer ends at once") {
  recalling t;
  a_recall op;
  a_lease asked;
  a_lend lend;
  const bool lent = GENERATE(false, true), made = GENERATE(false, true);
  if (lent) {
    lend.bytes = 77;
    lend.rights = some_rights;
    t.owner.grants.lend(lend);
  } else {
    t.ask(asked, 77, some_rights, seconds(1));
    t.exchange();
  }
  const std::uint32_t id = t.owner.grants.next().grant;
  if (made)
    t.owner.grants.made(id, {0x1000, 77, 5}, t.now);
  t.recall(op, {id});
  if (!made) {
    t.waits();
    t.owner.grants.made(id, {0x1000, 77, 5}, t.now);
  }
  t.ends(id);
  t.exchange();
  CHECK(t.count(frame_type::recall) + t.count(frame_type::granted) + t.count(frame_type::lent) ==
        0);
  if (lent) {
    bool ended = false;
    for (grant_action a = t.owner.grants.next(); a.what != make_or_end::none;
         a = t.owner.grants.next())
      ended = ended || a.what == make_or_end::lent;
    CHECK(ended);
    CHECK(lend.ec == error::lease_revoked);
    CHECK(op.unconfirmed == 0);
  } else {
    t.completes(op, 1, 0);
    REQUIRE(t.user.leases.next() == &asked);
    CHECK(asked.ec == error::lease_revoked);
  }
}

TEST_CASE("recalls: a region that no operation has received is recalled, too") {
  recalling t;
  a_lend lend;
  t.lends(lend, no_lease);
  CHECK(t.owner.grants.next().what == make_or_end::lent);
  a_recall op;
  t.recall(op, {t.number});
  t.exchange();
  t.ends(t.number);
  t.completes(op, 1, 0);
  a_wait wait;
  t.user.inbox.receive(wait);
  REQUIRE(t.user.inbox.next() == &wait);
  CHECK(t.user.leases.check(wait.id, t.now) == error::lease_revoked);
}

TEST_CASE("recalls: a cancelled recall continues without its operation") {
  recalling t;
  const remote_lease l = t.granted();
  a_recall op;
  t.recall(op, {t.number});
  CHECK(t.owner.grants.cancel(op));
  CHECK(!t.owner.grants.cancel(op));
  t.exchange();
  CHECK(t.user.leases.check(l.id, t.now) == error::lease_revoked);
  t.ends(t.number);
  t.waits();
}

TEST_CASE("recalls: a goodbye of the peer confirms, and the failure of the link does not") {
  recalling t;
  (void)t.granted();
  a_recall op;
  t.recall(op, {t.number}, no_lease);
  SECTION("the peer closes") {
    t.user.link.close();
    t.exchange();
    t.ends(t.number);
    t.completes(op, 1, 0);
    CHECK(!op.ec);
  }
  SECTION("the owner closes, before or after it has sent the recall") {
    if (GENERATE(false, true))
      t.from_owner();
    t.owner.link.close();
    t.exchange();
    t.ends(t.number);
    t.completes(op, 1, 0);
    CHECK(!op.ec);
  }
  SECTION("the owner has closed before the recall") {
    a_recall late;
    t.owner.link.close();
    t.recall(late, {t.number}, no_lease);
    t.exchange();
    t.ends(t.number);
    t.completes(op, 1, 0);
    t.completes(late, 1, 0);
  }
  SECTION("the link fails") {
    t.owner.link.stop(asio::error::connection_reset);
    t.ends(t.number);
    t.completes(op, 1, 1);
    CHECK(op.ec == asio::error::connection_reset);
  }
  CHECK(!t.failure());
}

TEST_CASE("recalls: a key that does not end is reported") {
  recalling t;
  (void)t.granted();
  a_recall op;
  t.recall(op, {t.number});
  t.exchange();
  const grant_action a = t.owner.grants.next();
  REQUIRE(a.what == make_or_end::end);
  t.owner.grants.ended(a.grant, error::device_keeps_memory);
  t.completes(op, 1, 0);
  CHECK(op.ec == error::device_keeps_memory);
}

TEST_CASE("recalls: a confirmation of what was not recalled is a violation") {
  recalling t;
  (void)t.granted();
  const auto yield = [&](std::uint32_t id) {
    t.owner.arrives(frame_of({.type = frame_type::yielded, .id = id}));
    return t.owner.link.failure();
  };
  SECTION("a grant that was not recalled") { CHECK(yield(t.number) == error::protocol_violation); }
  SECTION("a recall that has not been sent") {
    a_recall op;
    t.recall(op, {t.number});
    // Without `run` of the driver.
    t.owner.complete_receive(frame_of({.type = frame_type::yielded, .id = t.number}));
    CHECK(t.owner.link.failure() == error::protocol_violation);
    t.owner.link.stop(error::protocol_violation);
    t.ends(t.number);
    t.completes(op, 1, 1);
    CHECK(op.ec == error::protocol_violation);
  }
  SECTION("a grant that was revoked without a recall, and whose key has not ended") {
    CHECK(t.owner.grants.revoke(t.number));
    CHECK(yield(t.number) == error::protocol_violation);
  }
  SECTION("a number that there never was") { CHECK(yield(3) == error::protocol_violation); }
  SECTION("a grant whose end the peer may not know yet is no violation") {
    CHECK(t.owner.grants.revoke(t.number));
    t.ends(t.number);
    CHECK(!yield(t.number));
  }
  SECTION("a second confirmation is none, either") {
    a_recall op;
    t.recall(op, {t.number});
    t.exchange();
    CHECK(!yield(t.number));
    t.ends(t.number);
    CHECK(!yield(t.number));
    t.completes(op, 1, 0);
  }
}
