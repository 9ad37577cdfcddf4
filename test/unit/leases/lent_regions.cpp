// SPDX-License-Identifier: BSL-1.0
// Regions that the owner lends, and regions that are handed back.
#include "catch.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "protocol/fake_link.hpp"
#include "unit/leases/grant_sides.hpp"

#include <vector>

using namespace grants_test;

TEST_CASE("grants: a region is handed back though its renewal was cancelled") {
  two t;
  const remote_lease l = t.granted();
  a_lease renewal, gift;
  renewal.what = lease_request::kind::renew;
  renewal.id = l.id;
  t.user.leases.start(renewal, t.now);
  while (t.carry(t.user, t.owner)) {
  }
  CHECK(t.user.leases.cancel(renewal));
  gift.what = lease_request::kind::give;
  gift.id = l.id;
  t.user.leases.start(gift, t.now);
  while (t.carry(t.owner, t.user)) {
  }
  t.exchange();
  t.ends(t.number);
  a_wait wait;
  t.owner.inbox.receive(wait);
  REQUIRE(t.owner.inbox.next() == &wait);
  CHECK(wait.returned);
}

TEST_CASE("grants: memory that was lent before closing is sent before the goodbye, however late "
          "its key") {
  two t;
  a_lend lend;
  lend.bytes = 77;
  lend.rights = some_rights;
  t.owner.grants.lend(lend);
  const std::uint32_t id = t.owner.grants.next().grant;
  t.owner.link.close();
  t.exchange();
  CHECK(t.frames.empty());
  SECTION("made") {
    t.owner.grants.made(id, {0x1000, 77, 5}, t.now);
    t.exchange();
    CHECK(t.owner.grants.next().lend == nullptr); // the key ends first, by the peer's goodbye
    CHECK(t.owner.grants.next().lend == &lend);
    CHECK(!lend.ec);
    CHECK(t.frames == std::vector{frame_type::lent, frame_type::goodbye, frame_type::goodbye});
    t.owner.grants.ended(id);
  }
  SECTION("not made") {
    t.owner.grants.not_made(id, asio::error::no_memory);
    t.exchange();
    CHECK(t.frames == std::vector{frame_type::goodbye, frame_type::goodbye});
    CHECK(t.owner.grants.next().lend == &lend);
    CHECK(lend.ec);
  }
  CHECK(t.owner.grants.live() == 0);
}

TEST_CASE("grants: a region is sent to the peer, and back to its owner") {
  two t;
  a_lend lend;
  lend.tag = 0xffffffff00000001;
  CHECK(t.lends(lend, seconds(5)).lend == &lend);
  CHECK(t.owner.grants.next().what == make_or_end::lent);
  CHECK(!lend.ec);
  a_wait cancelled, wait;
  t.user.inbox.receive(wait);
  CHECK(t.user.inbox.cancel(wait));
  t.user.inbox.receive(wait);
  REQUIRE(t.user.inbox.next() == &wait);
  CHECK(!wait.returned);
  CHECK(wait.tag == lend.tag);
  const std::uint32_t id = wait.id;
  CHECK(t.user.leases.get(id)->memory == remote_buffer{0x1000, 77, 5});
  // The beginning of its lease is unknown, so the region begins with a renewal.
  CHECK(t.user.leases.check(id, t.now) == error::lease_expired);
  a_lease renewal;
  renewal.what = lease_request::kind::renew;
  renewal.id = id;
  t.user.leases.start(renewal, t.now);
  t.exchange();
  REQUIRE(t.user.leases.next() == &renewal);
  CHECK(!t.user.leases.check(id, t.now));
  CHECK(renewal.result.until == t.now + seconds(5));

  a_lease gift;
  gift.what = lease_request::kind::give;
  gift.id = id;
  gift.tag = 0x8000000000000000;
  t.user.leases.start(gift, t.now);
  CHECK(t.user.leases.check(id, t.now) == error::lease_expired);
  t.exchange();
  REQUIRE(t.user.leases.next() == &gift);
  a_wait owner_waits;
  t.owner.inbox.receive(owner_waits);
  CHECK(t.owner.inbox.next() == nullptr); // until the key has ended
  t.ends(t.number);
  REQUIRE(t.owner.inbox.next() == &owner_waits);
  CHECK(owner_waits.returned);
  CHECK(owner_waits.id == t.number);
  CHECK(owner_waits.tag == gift.tag);
  t.owner.grants.received(t.number);
  CHECK(t.owner.grants.live() == 0);
}

TEST_CASE("grants: requested memory that is handed back counts until it is received") {
  two t;
  const bool by_number = GENERATE(false, true);
  const std::uint64_t bytes = by_number ? 1 : 400;
  std::vector<std::uint32_t> kept;
  for (std::uint64_t sum = bytes; sum <= 1000 && kept.size() != some_limits.grants; sum += bytes) {
    t.hands_back(t.granted(bytes));
    kept.push_back(t.number);
  }
  CHECK(t.owner.grants.bytes() == kept.size() * bytes);
  CHECK(t.owner.grants.grants() == kept.size());
  CHECK(t.denial(bytes) == error::remote_memory_limit);
  CHECK_FALSE(t.owner.grants.revoke(kept.back())); // the peer has no access
  t.receives(kept.front());
  CHECK(t.owner.grants.bytes() == (kept.size() - 1) * bytes);
  t.hands_back(t.granted(bytes));
  CHECK(t.number != kept.front());
  CHECK(t.denial(bytes) == error::remote_memory_limit);
  SECTION("or dropped with the connection") {
    t.owner.link.close();
    CHECK(t.owner.grants.bytes() == 0);
    CHECK(t.owner.grants.grants() == 0);
    CHECK(t.owner.grants.live() == 0);
  }
  SECTION("also when the peer has gone") {
    t.owner.link.stop(asio::error::connection_reset);
    for (std::size_t i = 1; i != kept.size(); ++i)
      t.receives(kept[i]);
    t.receives(t.number);
    CHECK(t.owner.grants.bytes() == 0);
    CHECK(t.owner.grants.live() == 0);
  }
}

TEST_CASE("grants: a request waits for a region that a waiting receive gets") {
  two t;
  side& owner = t.owner;
  const remote_lease l = t.granted(600);
  const std::uint32_t given = t.number;
  a_wait wait;
  owner.inbox.receive(wait);
  a_lease gift, op;
  t.gives(gift, l);
  t.ask(op, 600, some_rights, seconds(1));
  t.exchange();
  const bool key_ended = GENERATE(false, true);
  if (key_ended)
    t.ends(given);
  t.exchange();
  REQUIRE(t.user.leases.next() == &gift);
  CHECK(t.user.leases.next() == nullptr);
  if (key_ended)
    CHECK(owner.grants.next().what == make_or_end::none);
  CHECK(owner.grants.bytes() == 600);
  SECTION("received") {
    if (!key_ended)
      t.ends(given);
    REQUIRE(owner.inbox.next() == &wait);
    owner.grants.received(given);
    const grant_action a = owner.grants.next();
    CHECK(a.what == make_or_end::make);
    CHECK(a.bytes == 600);
    t.user.link.stop(asio::error::eof);
  }
  SECTION("cancelled") {
    CHECK(owner.inbox.cancel(wait));
    if (!key_ended)
      t.ends(given);
    CHECK(owner.grants.next().what == make_or_end::none);
    t.exchange();
    REQUIRE(t.user.leases.next() == &op);
    CHECK(op.ec == error::remote_memory_limit);
  }
}

TEST_CASE("grants: a request waits for no more regions than receives wait for") {
  two t;
  for (int i = 0; i < 2; ++i)
    t.hands_back(t.granted(400));
  a_wait wait;
  t.owner.inbox.receive(wait);
  CHECK(t.denial(601) == error::remote_memory_limit);
  a_lease op;
  t.ask(op, 600, some_rights, seconds(1));
  t.exchange();
  CHECK(t.owner.grants.next().what == make_or_end::none);
  t.exchange();
  CHECK(t.user.leases.next() == nullptr);
  t.user.link.stop(asio::error::eof);
}

TEST_CASE("grants: a recall completes when the key of a region that was handed back has ended") {
  two t;
  const remote_lease l = t.granted();
  a_lease gift;
  t.gives(gift, l);
  a_recall recall, late;
  recall.grants = {t.number};
  t.owner.grants.recall(recall, seconds(1), t.now);
  t.ends(t.number);
  REQUIRE(t.owner.grants.next().recall == &recall);
  CHECK(recall.unconfirmed == 0);
  late.grants = {t.number};
  t.owner.grants.recall(late, seconds(1), t.now);
  REQUIRE(t.owner.grants.next().recall == &late);
  CHECK(late.count == 0);
  CHECK(t.owner.grants.bytes() == 100);
  t.receives(t.number);
}

TEST_CASE("grants: memory whose key cannot be ended is not kept for a receive") {
  two t;
  const remote_lease l = t.granted();
  a_lease gift;
  t.gives(gift, l);
  REQUIRE(t.owner.grants.next().what == make_or_end::end);
  t.owner.grants.ended(t.number, error::device_keeps_memory);
  CHECK(t.owner.grants.live() == 0);
  CHECK(t.owner.grants.bytes() == 0);
}

TEST_CASE("grants: a lease longer than can be encoded, or negative, is still sent") {
  const auto asked = GENERATE(microseconds(std::chrono::years(50)), microseconds(-1));
  two t;
  a_lend lend;
  t.lends(lend, asked);
  CHECK(!t.failure());
  a_wait wait;
  t.user.inbox.receive(wait);
  CHECK(t.user.inbox.next() == &wait);
}

TEST_CASE("grants: a region of a cancelled receive is given to the next receive") {
  two t;
  a_lend lend;
  t.lends(lend, seconds(5));
  a_wait given_up, next;
  t.user.inbox.receive(given_up);
  REQUIRE(t.user.inbox.next() == &given_up);
  t.user.inbox.put_back(given_up.id, 9);
  CHECK(t.user.inbox.next() == nullptr);
  t.user.inbox.receive(next);
  REQUIRE(t.user.inbox.next() == &next);
  CHECK(next.id == given_up.id);
  CHECK(next.tag == 9);
  CHECK(!next.returned);
}

TEST_CASE("grants: a region that has ended meanwhile is not handed back") {
  two t;
  const remote_lease l = t.granted();
  a_lease gift;
  gift.what = lease_request::kind::give;
  gift.id = l.id;
  t.user.leases.start(gift, t.now);
  CHECK(t.owner.grants.revoke(t.number));
  t.exchange();
  t.ends(t.number);
  a_wait wait;
  t.owner.inbox.receive(wait);
  CHECK(t.owner.inbox.next() == nullptr);
  CHECK(!t.failure());
  t.owner.inbox.cancel(wait);
}

TEST_CASE("grants: regions wait while a peer does not take the releases of earlier ones") {
  two t;
  side& user = t.user;
  a_wait wait;
  std::uint32_t lent = 0;
  const auto give_a_credit = [&] {
    while (user.complete_send()) {
    }
    user.arrives(frame_of({.type = frame_type::credits, .credits = 1}));
  };
  // Gives the user a credit only if it must, for one frame. That returns the peer's credits.
  const auto lend = [&] {
    if (user.link.flow().with_peer() < 3)
      give_a_credit();
    payload_bytes payload{};
    encode(loan_payload{.memory = {0x1000, 77, 5}, .lease = no_lease, .rights = some_rights},
           payload);
    user.arrives(frame_of(
        {.type = frame_type::lent, .length = loan_payload::size, .id = 100 + lent++}, payload));
    user.inbox.receive(wait);
    return user.inbox.next() == &wait;
  };
  const std::size_t most = user.link.options().receives;
  while (lent < 100 * most && lend())
    user.leases.release(wait.id);
  CHECK_FALSE(t.failure());
  CHECK(lent > most);
  CHECK(lent == user.frames_sent + most + 2);
  give_a_credit();
  CHECK(user.inbox.next() == &wait);
  CHECK_FALSE(wait.ec);
  SECTION("and come at the end of the connection") {
    user.leases.release(wait.id);
    CHECK_FALSE(lend());
    user.stop(asio::error::connection_reset);
    CHECK(user.inbox.next() == &wait);
    CHECK_FALSE(wait.ec);
  }
}
