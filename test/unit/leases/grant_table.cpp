// SPDX-License-Identifier: BSL-1.0
// Requests for memory of the peer: their grants and leases.
#include "leases/grant_table.hpp"
#include "catch.hpp"
#include "leases/lease_table.hpp"
#include "protocol/fake_link.hpp"
#include "unit/leases/grant_sides.hpp"

#include <vector>

using namespace grants_test;

TEST_CASE("grants: a request within the limits is granted") {
  two t;
  a_lease op;
  t.ask(op, 100, remote_rights::read, seconds(3));
  t.exchange();
  CHECK(t.user.leases.next() == nullptr);
  const grant_action a = t.owner.grants.next();
  REQUIRE(a.what == make_or_end::make);
  CHECK(a.bytes == 100);
  CHECK(a.rights == remote_rights::read);
  CHECK(t.owner.grants.bytes() == 100);
  t.now += seconds(1);
  t.owner.grants.made(a.grant, {0x1000, 100, 5}, t.now);
  t.exchange();
  REQUIRE(t.user.leases.next() == &op);
  REQUIRE(!op.ec);
  CHECK(op.result.memory == remote_buffer{0x1000, 100, 5});
  // The user counts from its request, the owner from its grant plus the grace.
  CHECK(op.result.until == t.now - seconds(1) + seconds(3));
  CHECK(t.owner.grants.next_expiry() == t.now + seconds(3) + milliseconds(500));
}

TEST_CASE("grants: a request beyond the limits is denied with the reason") {
  struct row {
    std::uint64_t bytes;
    remote_rights rights;
    error_code expected;
  };
  for (const row& r : {row{1001, remote_rights::read, error::remote_memory_limit},
                       row{1, remote_rights::atomic, error::rights_refused},
                       row{901, remote_rights::read, error::remote_memory_limit},
                       row{900, remote_rights::read, {}}}) {
    two t;
    (void)t.granted(100);
    a_lease op;
    t.ask(op, r.bytes, r.rights, seconds(1));
    t.exchange();
    const grant_action a = t.owner.grants.next();
    t.exchange();
    if (r.expected) {
      CHECK(a.what == make_or_end::none);
      REQUIRE(t.user.leases.next() == &op);
      CHECK(op.ec == r.expected);
    } else {
      CHECK(a.what == make_or_end::make);
    }
    t.user.link.stop(asio::error::eof);
  }
}

TEST_CASE("grants: a request beyond the number of grants is denied, however small it is") {
  two t;
  for (std::uint32_t i = 0; i < some_limits.grants; ++i)
    (void)t.granted(1);
  a_lease op;
  t.ask(op, 1, remote_rights::read, seconds(1));
  t.exchange();
  CHECK(t.owner.grants.next().what == make_or_end::none);
  t.exchange();
  REQUIRE(t.user.leases.next() == &op);
  CHECK(op.ec == error::remote_memory_limit);
}

TEST_CASE("grants: an invalid request is refused before it is sent") {
  two t;
  a_lease none, rightless;
  t.ask(none, 0, remote_rights::read, {});
  t.ask(rightless, 1, remote_rights::none, {});
  REQUIRE(t.user.leases.next() == &none);
  CHECK(none.ec == asio::error::invalid_argument);
  REQUIRE(t.user.leases.next() == &rightless);
  CHECK(rightless.ec == asio::error::invalid_argument);
}

TEST_CASE("grants: a lease is the owner's default, and no longer than its longest") {
  for (const auto& [asked, given] : {std::pair<microseconds, microseconds>{{}, seconds(10)},
                                     {seconds(20), seconds(20)},
                                     {seconds(21), seconds(20)},
                                     {no_lease, seconds(20)}}) {
    two t;
    CHECK(t.granted(100, asked).until == t.now + given);
  }
}

TEST_CASE("grants: a request that only waits for a key to end waits for it") {
  two t;
  const remote_lease first = t.granted(600);
  t.user.leases.release(first.id);
  t.exchange();
  CHECK(t.owner.grants.bytes() == 600);
  a_lease op;
  t.ask(op, 600, some_rights, seconds(1));
  t.exchange();
  t.ends(t.number);
  const grant_action a = t.owner.grants.next();
  CHECK(a.what == make_or_end::make);
  CHECK(a.grant != t.number);
  t.user.link.stop(asio::error::eof);
}

TEST_CASE("grants: a request is denied if its key cannot be made") {
  two t;
  a_lease op;
  t.ask(op, 100, some_rights, seconds(1));
  t.exchange();
  t.owner.grants.not_made(t.owner.grants.next().grant, asio::error::no_memory);
  t.exchange();
  REQUIRE(t.user.leases.next() == &op);
  CHECK(op.ec == error::peer_out_of_memory);
  CHECK(t.owner.grants.live() == 0);
  CHECK(t.owner.grants.bytes() == 0);
}

TEST_CASE("grants: a lease ends by time, at the user's side first") {
  two t;
  const remote_lease l = t.granted(100, seconds(1));
  t.now += seconds(1) - microseconds(1);
  CHECK(!t.user.leases.check(l.id, t.now));
  t.now += microseconds(1);
  CHECK(t.user.leases.check(l.id, t.now) == error::lease_expired);
  t.owner.grants.expire(t.now);
  CHECK(t.owner.grants.next().what == make_or_end::none);
  t.now += milliseconds(500);
  t.owner.grants.expire(t.now);
  CHECK(t.owner.grants.bytes() == 100); // until the key has ended
  t.ends(t.number);
  CHECK(t.owner.grants.bytes() == 0);
  t.user.leases.release(l.id); // too late, and harmless
  t.exchange();
  CHECK(!t.failure());
}

TEST_CASE("grants: a lease is renewed from the time of the request") {
  two t;
  const remote_lease l = t.granted(100, seconds(1));
  t.now += milliseconds(900);
  a_lease renewal;
  renewal.what = lease_request::kind::renew;
  renewal.id = l.id;
  renewal.lease = seconds(5);
  t.user.leases.start(renewal, t.now);
  t.now += milliseconds(300);
  t.exchange();
  REQUIRE(t.user.leases.next() == &renewal);
  CHECK(!renewal.ec);
  CHECK(renewal.result.until == t.now - milliseconds(300) + seconds(5));
  CHECK(t.owner.grants.next_expiry() == t.now + milliseconds(5500));
  SECTION("not when it has ended") {
    t.now += seconds(6);
    t.owner.grants.expire(t.now);
    t.ends(t.number);
    t.user.leases.start(renewal, t.now);
    t.exchange();
    REQUIRE(t.user.leases.next() == &renewal);
    CHECK(renewal.ec == error::lease_expired);
  }
}

TEST_CASE("grants: a revoked grant cannot be used, and its number is not used for another soon") {
  two t;
  const remote_lease l = t.granted();
  CHECK(t.owner.grants.revoke(t.number));
  CHECK(!t.owner.grants.revoke(t.number));
  t.ends(t.number);
  const std::uint32_t other = [&] {
    a_lend lend;
    lend.bytes = 1;
    lend.rights = some_rights;
    t.owner.grants.lend(lend);
    const grant_action a = t.owner.grants.next();
    t.owner.grants.not_made(a.grant, asio::error::no_memory);
    CHECK(t.owner.grants.next().lend == &lend);
    return a.grant;
  }();
  CHECK(other != t.number);
  CHECK((other & 0xffff) != (t.number & 0xffff)); // its notice has not been sent yet
  t.exchange();
  CHECK(t.user.leases.check(l.id, t.now) == error::lease_revoked);
  t.user.leases.release(l.id);
  t.exchange();
  CHECK(t.frames.back() == frame_type::ended); // so there is no release
}

TEST_CASE("grants: an ended region that is kept does not affect one that gets its number") {
  two t;
  const remote_lease kept = t.granted(100, seconds(1));
  const std::uint32_t old = t.number;
  const bool by_time = GENERATE(false, true); // the owner sends nothing then
  if (by_time) {
    t.now += seconds(2);
    t.owner.grants.expire(t.now);
  } else {
    t.owner.grants.revoke(old);
  }
  t.ends(old);
  remote_lease again;
  for (bool first = true; first || t.number != old; first = false) {
    t.user.leases.release(again.id);
    t.exchange();
    if (!first)
      t.ends(t.number);
    again = t.granted();
    REQUIRE(!t.failure());
  }
  CHECK(t.user.leases.check(kept.id, t.now) ==
        (by_time ? error::lease_expired : error::lease_revoked));
  CHECK(!t.user.leases.check(again.id, t.now));
  t.user.leases.release(kept.id);
  t.exchange();
  CHECK(!t.user.leases.check(again.id, t.now));
  CHECK(t.owner.grants.live() == 1);
}

TEST_CASE("grants: a grant that a cancelled request has renewed ends when it is released") {
  two t;
  const remote_lease l = t.granted(100, seconds(1));
  a_lease renewal;
  renewal.what = lease_request::kind::renew;
  renewal.id = l.id;
  renewal.lease = seconds(15);
  t.user.leases.start(renewal, t.now);
  while (t.carry(t.user, t.owner)) {
  }
  CHECK(t.user.leases.cancel(renewal));
  t.exchange();
  t.now += seconds(2);
  t.user.leases.release(l.id);
  t.exchange();
  t.ends(t.number);
  CHECK(t.owner.grants.live() == 0);
}

TEST_CASE("grants: a grant that is revoked before the peer has received it is denied") {
  two t;
  a_lease op;
  t.ask(op, 100, some_rights, seconds(1));
  t.exchange();
  const std::uint32_t id = t.owner.grants.next().grant;
  t.owner.grants.made(id, {0x1000, 100, 5}, t.now);
  CHECK(t.owner.grants.revoke(id));
  t.exchange();
  REQUIRE(t.user.leases.next() == &op);
  CHECK(op.ec == error::lease_revoked);
}

TEST_CASE("grants: a grant that is revoked while its key is being made is not sent to the peer") {
  two t;
  a_lease op;
  a_lend lend;
  if (GENERATE(false, true)) {
    t.ask(op, 100, some_rights, seconds(1));
    t.exchange();
  } else {
    lend.bytes = 77;
    lend.rights = some_rights;
    t.owner.grants.lend(lend);
  }
  const grant_action a = t.owner.grants.next();
  REQUIRE(a.what == make_or_end::make);
  CHECK(t.owner.grants.revoke(a.grant));
  CHECK(!t.owner.grants.revoke(a.grant));
  t.exchange();
  CHECK(t.owner.grants.next().what == make_or_end::none);
  CHECK(t.user.leases.next() == nullptr);
  const bool made = GENERATE(false, true);
  if (made) {
    t.owner.grants.made(a.grant, {0x1000, 100, 5}, t.now);
    CHECK(!t.owner.grants.revoke(a.grant));
    t.ends(a.grant);
  } else {
    t.owner.grants.not_made(a.grant, asio::error::no_memory);
  }
  t.exchange();
  if (a.lend != nullptr) {
    CHECK(t.owner.grants.next().lend == &lend);
    CHECK(lend.ec == (made ? error_code(error::lease_revoked) : asio::error::no_memory));
    CHECK(t.frames.empty());
  } else {
    REQUIRE(t.user.leases.next() == &op);
    CHECK(op.ec == (made ? error::lease_revoked : error::peer_out_of_memory));
    CHECK(t.frames == std::vector{frame_type::request, frame_type::denied});
  }
  CHECK(t.owner.grants.live() == 0);
}

TEST_CASE("grants: an answer to a cancelled request is released") {
  two t;
  a_lease op;
  t.ask(op, 100, some_rights, seconds(1));
  t.exchange();
  CHECK(t.user.leases.cancel(op));
  CHECK(!t.user.leases.cancel(op));
  const std::uint32_t id = t.owner.grants.next().grant;
  t.owner.grants.made(id, {0x1000, 100, 5}, t.now);
  t.exchange();
  CHECK(t.user.leases.next() == nullptr);
  t.ends(id);
  CHECK(t.owner.grants.live() == 0);
  CHECK(t.user.leases.size() == 0);
}

TEST_CASE("grants: everything ends once when the connection fails") {
  two t;
  const remote_lease l = t.granted(100);
  a_lease asked, renewal;
  t.ask(asked, 100, some_rights, seconds(1));
  t.exchange();
  const std::uint32_t making = t.owner.grants.next().grant;
  t.owner.link.stop(asio::error::connection_reset);
  t.ends(t.number);
  t.owner.grants.made(making, {0x2000, 100, 6}, t.now);
  t.ends(making);
  CHECK(t.owner.grants.live() == 0);
  CHECK(t.owner.grants.bytes() == 0);
  t.user.link.stop(asio::error::connection_reset);
  REQUIRE(t.user.leases.next() == &asked);
  CHECK(asked.ec == asio::error::connection_reset);
  CHECK(t.user.leases.check(l.id, t.now) == asio::error::connection_reset);
  renewal.what = lease_request::kind::renew;
  renewal.id = l.id;
  t.user.leases.start(renewal, t.now);
  REQUIRE(t.user.leases.next() == &renewal);
  CHECK(renewal.ec == asio::error::connection_reset);
}

TEST_CASE("grants: all grants end with a goodbye") {
  two t;
  t.granted(100);
  t.user.link.close();
  t.exchange();
  t.ends(t.number);
  CHECK(!t.failure());
}

TEST_CASE("grants: a frame that makes no sense is a violation") {
  struct row {
    frame_header header;
    const char* what;
  };
  payload_bytes payload{};
  encode(grant_payload{{0x1000, 1, 2}, seconds(1), 0, some_rights}, payload);
  for (const row& r :
       {row{{.type = frame_type::release, .id = 3}, "of a number that there never was"},
        row{{.type = frame_type::returned, .length = tag_payload::size, .id = 3}, "the same"},
        row{{.type = frame_type::denied, .id = 0, .immediate = 1}, "an answer to nothing"},
        row{{.type = frame_type::granted, .length = grant_payload::size}, "the same"}}) {
    INFO(r.what);
    side s;
    s.arrives(frame_of(r.header, payload));
    CHECK(s.link.failure() == error::protocol_violation);
  }
}

TEST_CASE("grants: a grant of memory of another size than requested is a violation") {
  for (const std::uint64_t bytes : {99U, 101U}) {
    two t;
    a_lease op;
    t.ask(op, 100, some_rights, seconds(1));
    t.exchange();
    t.owner.grants.made(t.owner.grants.next().grant, {0x1000, bytes, 5}, t.now);
    t.exchange();
    CHECK(t.failure() == error::protocol_violation);
    CHECK(t.user.leases.next() == nullptr); // it ends with the connection
    t.user.link.stop(error::protocol_violation);
    REQUIRE(t.user.leases.next() == &op);
    CHECK(op.ec == error::protocol_violation);
  }
}

TEST_CASE("grants: more unanswered requests than receives are a violation") {
  side s;
  payload_bytes payload;
  encode(request_payload{1, seconds(1), remote_rights::read}, payload);
  for (std::uint32_t i = 0; i < 17 && !s.link.failure(); ++i) {
    const frame_header h{.type = frame_type::request, .length = request_payload::size, .id = i};
    s.link.on_received(i, frame_of(h, payload), {});
  }
  CHECK(s.link.failure() == error::protocol_violation);
}
