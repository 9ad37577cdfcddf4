// SPDX-License-Identifier: BSL-1.0
//
// The owner of memory and its user, without a device.
#pragma once

#include "catch.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "protocol/fake_link.hpp"

#include <vector>

namespace grants_test {

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
struct a_recall final : recall_request {};

inline const remote_rights some_rights = remote_rights::read | remote_rights::write;
inline const grant_limits some_limits = {.rights = some_rights,
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
  /// Starts to hand a region back: the owner knows, and the key has not ended.
  void gives(a_lease& gift, const remote_lease& l) {
    gift.what = lease_request::kind::give;
    gift.id = l.id;
    user.leases.start(gift, now);
    exchange();
  }
  /// Hands a region back, with its key ended at once.
  void hands_back(const remote_lease& l) {
    a_lease gift;
    gives(gift, l);
    REQUIRE(user.leases.next() == &gift);
    ends(number);
  }
  /// Receives the memory of a grant that was handed back.
  void receives(std::uint32_t grant) {
    a_wait wait;
    owner.inbox.receive(wait);
    REQUIRE(owner.inbox.next() == &wait);
    REQUIRE(wait.returned);
    CHECK(wait.id == grant);
    owner.grants.received(grant);
  }
  /// The result of a request that is denied.
  error_code denial(std::uint64_t bytes) {
    a_lease op;
    ask(op, bytes, some_rights, seconds(1));
    exchange();
    CHECK(owner.grants.next().what == make_or_end::none);
    exchange();
    REQUIRE(user.leases.next() == &op);
    return op.ec;
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

} // namespace grants_test
