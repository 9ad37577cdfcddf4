// SPDX-License-Identifier: BSL-1.0

#include "catch.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "protocol/fake_link.hpp"

#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using namespace protocol_test;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using make_or_end = grant_action::kind;

struct a_lease final : lease_request {};
struct a_lend final : lend_request {};
struct a_wait final : region_receive {};

const remote_rights some_rights = remote_rights::read | remote_rights::write;
const grant_limits some_limits = {.rights = some_rights,
                                  .bytes = 1000,
                                  .grants = 3,
                                  .default_lease = seconds(10),
                                  .longest_lease = seconds(20),
                                  .grace = milliseconds(500)};

struct side final : fake_link {
  region_inbox inbox{link};
  grant_table grants{link, inbox, some_limits};
  lease_table leases{link, inbox};
};

/// An owner of memory and its user. Frames move between them when the test says so.
struct two {
  side owner, user;
  protocol_clock::time_point now{std::chrono::hours(1)};
  std::vector<frame_type> frames; // of both sides
  std::uint32_t number = 0;       // the owner's number of the last grant

  error_code failure() const { return owner.failure ? owner.failure : user.failure; }
  /// Completes and delivers all frames of one side.
  bool carry(side& from, side& to) {
    to.now = now;
    from.run();
    while (from.complete_send()) {
    }
    const bool moved = !from.wire.empty();
    for (const wire_frame& f : from.wire)
      frames.push_back(f.header.type);
    while (from.deliver_to(to)) {
    }
    return moved;
  }
  void exchange() {
    while (carry(owner, user) || carry(user, owner)) {
    }
  }
  /// Requests memory, makes the key and delivers the answer.
  remote_lease granted(std::uint64_t bytes = 100, microseconds lease = seconds(1)) {
    a_lease op;
    ask(op, bytes, some_rights, lease);
    exchange();
    const grant_action a = owner.grants.next();
    REQUIRE(a.what == make_or_end::make);
    number = a.grant;
    owner.grants.made(number, {0x1000, bytes, 5}, now);
    exchange();
    REQUIRE(user.leases.next() == &op);
    REQUIRE(!op.ec);
    return op.result;
  }
  void ask(a_lease& op, std::uint64_t bytes, remote_rights rights, microseconds lease) {
    op.bytes = bytes;
    op.rights = rights;
    op.lease = lease;
    user.leases.start(op, now);
  }
  /// Lends memory and makes the key. Returns the action that requested the key.
  grant_action lends(a_lend& op, microseconds lease) {
    op.bytes = 77;
    op.rights = some_rights;
    op.lease = lease;
    owner.grants.lend(op);
    const grant_action a = owner.grants.next();
    REQUIRE(a.what == make_or_end::make);
    CHECK(owner.grants.bytes() == 0); // memory that the owner lends is not counted
    number = a.grant;
    owner.grants.made(number, {0x1000, 77, 5}, now);
    exchange();
    return a;
  }
  /// Checks that the owner must end this key, and ends it.
  void ends(std::uint32_t grant) {
    const grant_action a = owner.grants.next();
    REQUIRE(a.what == make_or_end::end);
    CHECK(a.grant == grant);
    owner.grants.ended(grant);
  }
};

} // namespace

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
  for (const row& r : {row{1001, remote_rights::read, asio::error::message_size},
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

TEST_CASE("grants: there are no more at a time than the limit says, however small") {
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

TEST_CASE("grants: no key, no grant") {
  two t;
  a_lease op;
  t.ask(op, 100, some_rights, seconds(1));
  t.exchange();
  t.owner.grants.not_made(t.owner.grants.next().grant, asio::error::no_memory);
  t.exchange();
  REQUIRE(t.user.leases.next() == &op);
  CHECK(op.ec == asio::error::no_memory);
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

TEST_CASE("grants: a lease is renewed, from when that was asked") {
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
    CHECK(op.ec == (made ? error_code(error::lease_revoked) : asio::error::no_memory));
    CHECK(t.frames == std::vector{frame_type::request, frame_type::denied});
  }
  CHECK(t.owner.grants.live() == 0);
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

TEST_CASE("grants: a region is sent to the peer, and back to its owner") {
  two t;
  a_lend lend;
  CHECK(t.lends(lend, seconds(5)).lend == &lend);
  CHECK(t.owner.grants.next().what == make_or_end::lent);
  CHECK(!lend.ec);
  a_wait cancelled, wait;
  t.user.inbox.receive(wait);
  CHECK(t.user.inbox.cancel(wait));
  t.user.inbox.receive(wait);
  REQUIRE(t.user.inbox.next() == &wait);
  CHECK(!wait.returned);
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
  CHECK(t.owner.grants.live() == 0);
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
  t.user.inbox.put_back(given_up.id);
  CHECK(t.user.inbox.next() == nullptr);
  t.user.inbox.receive(next);
  REQUIRE(t.user.inbox.next() == &next);
  CHECK(next.id == given_up.id);
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
        row{{.type = frame_type::returned, .id = 3}, "the same"},
        row{{.type = frame_type::denied, .id = 0, .immediate = 1}, "an answer to nothing"},
        row{{.type = frame_type::granted, .length = grant_payload::size}, "the same"}}) {
    INFO(r.what);
    side s;
    s.arrives(frame_of(r.header, payload));
    CHECK(s.link.failure() == error::protocol_violation);
  }
}

TEST_CASE("grants: a grant of other memory than was asked for is a violation") {
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
