// SPDX-License-Identifier: BSL-1.0
#include "iwarp/mpa_negotiation.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;

namespace {

start_options options(std::uint16_t ird, std::uint16_t ord, bool peer_to_peer = false) {
  start_options o;
  o.ird = ird;
  o.ord = ord;
  o.max_ird = ird;
  o.peer_to_peer = peer_to_peer;
  return o;
}

constexpr rtr_kinds both = rtr_kinds::rdma_write | rtr_kinds::rdma_read;

} // namespace

TEST_CASE("CRCs are used by both sides if either asks for them") {
  for (const bool initiator : {false, true})
    for (const bool acceptor : {false, true})
      for (const bool enhanced : {false, true}) {
        start_options i;
        i.crc = initiator;
        i.enhanced = enhanced;
        start_options a;
        a.crc = acceptor;
        const start_frame request = make_request(i);
        CHECK(request.crc == initiator);
        const start_answer answered = answer(request, a);
        const start_result concluded = conclude(request, answered.reply, i);
        CHECK(answered.result.error == start_error::none);
        CHECK(concluded.error == start_error::none);
        CHECK(answered.result.crc == (initiator || acceptor));
        CHECK(concluded.crc == (initiator || acceptor));
        // siw looks at the reply only.
        CHECK(answered.reply.crc == (initiator || acceptor));
      }
}

TEST_CASE("IRD and ORD follow the table") {
  struct row {
    std::uint16_t initiator_ird, initiator_ord, acceptor_ird, acceptor_ord;
    std::uint16_t to_acceptor, to_initiator; // reads in that direction
  };
  const row rows[] = {
      {8, 8, 8, 8, 8, 8}, {4, 8, 16, 16, 8, 4}, {16, 16, 4, 8, 4, 8},
      {0, 0, 8, 8, 0, 0}, {8, 8, 0, 0, 0, 0},   {128, 1, 128, 128, 1, 128},
  };
  for (const row& r : rows) {
    CAPTURE(r.initiator_ird, r.initiator_ord, r.acceptor_ird, r.acceptor_ord);
    const start_options i = options(r.initiator_ird, r.initiator_ord);
    const start_options a = options(r.acceptor_ird, r.acceptor_ord);
    const start_frame request = make_request(i);
    const start_answer answered = answer(request, a);
    const start_result concluded = conclude(request, answered.reply, i);
    CHECK(answered.result.ird == r.to_acceptor);
    CHECK(answered.result.ord == r.to_initiator);
    CHECK(concluded.error == start_error::none);
    CHECK(concluded.ord == r.to_acceptor);
    CHECK(concluded.ird == r.to_initiator);
    CHECK(answered.reply.ird == r.to_acceptor);
    CHECK(answered.reply.ord == r.to_initiator);
  }
}

TEST_CASE("A value that the peer does not negotiate is the own value") {
  start_frame request = make_request(options(8, 8));
  request.ird = start_frame::not_negotiated;
  request.ord = start_frame::not_negotiated;
  const start_answer answered = answer(request, options(5, 6));
  CHECK(answered.result.ird == 5);
  CHECK(answered.result.ord == 6);
  CHECK(answered.reply.ird == start_frame::not_negotiated);
  CHECK(answered.reply.ord == start_frame::not_negotiated);
  request = make_request(options(8, 9));
  const start_result concluded = conclude(request, answered.reply, options(8, 9));
  CHECK(concluded.error == start_error::none);
  CHECK(concluded.ird == 8);
  CHECK(concluded.ord == 9);
}

TEST_CASE("An own value is never sent as the one that means not negotiated") {
  const start_frame request = make_request(options(0xffff, 0xffff));
  CHECK(request.ird == start_frame::not_negotiated - 1);
  CHECK(request.ord == start_frame::not_negotiated - 1);
}

TEST_CASE("An initiator raises its IRD up to its maximum, else it ends the connection") {
  start_options own = options(4, 4);
  own.max_ird = 10;
  const start_frame request = make_request(own);
  start_frame reply = answer(request, options(8, 8)).reply;
  reply.ord = 10;
  CHECK(conclude(request, reply, own).error == start_error::none);
  CHECK(conclude(request, reply, own).ird == 10);
  reply.ord = 11;
  CHECK(conclude(request, reply, own).error == start_error::insufficient_ird);
}

TEST_CASE("A revision 1 connection does not negotiate IRD, ORD and RTR") {
  start_options i = options(4, 5, true);
  i.enhanced = false;
  const start_frame request = make_request(i);
  CHECK(request.revision == 1);
  CHECK_FALSE(request.enhanced);
  const start_answer answered = answer(request, options(6, 7));
  CHECK(answered.reply.revision == 1);
  CHECK_FALSE(answered.reply.enhanced);
  CHECK(answered.result.ird == 6);
  CHECK(answered.result.ord == 7);
  CHECK_FALSE(answered.result.peer_to_peer);
  const start_result concluded = conclude(request, answered.reply, i);
  CHECK(concluded.error == start_error::none);
  CHECK(concluded.ird == 4);
  CHECK(concluded.ord == 5);
  CHECK(concluded.rtr == rtr_kinds::none);
}

TEST_CASE("The RTR message of peer-to-peer mode follows the table") {
  struct row {
    rtr_kinds initiator, acceptor, used;
  };
  const row rows[] = {
      {both, both, rtr_kinds::rdma_write},
      {rtr_kinds::rdma_read, both, rtr_kinds::rdma_read},
      {both, rtr_kinds::rdma_read, rtr_kinds::rdma_read},
      {rtr_kinds::rdma_write, rtr_kinds::rdma_write, rtr_kinds::rdma_write},
      {rtr_kinds::rdma_read, rtr_kinds::rdma_write, rtr_kinds::none},
      {rtr_kinds::zero_length_fulpdu, both, rtr_kinds::none},
      {rtr_kinds::none, both, rtr_kinds::none},
      {both | rtr_kinds::zero_length_fulpdu, rtr_kinds::zero_length_fulpdu,
       rtr_kinds::zero_length_fulpdu},
  };
  for (const row& r : rows) {
    CAPTURE(static_cast<int>(r.initiator), static_cast<int>(r.acceptor));
    start_options i = options(1, 1, true);
    i.rtr = r.initiator;
    start_options a = options(1, 1);
    a.rtr = r.acceptor;
    const start_frame request = make_request(i);
    CHECK(request.peer_to_peer);
    const start_answer answered = answer(request, a);
    CHECK(answered.reply.peer_to_peer);
    const start_result concluded = conclude(request, answered.reply, i);
    if (r.used == rtr_kinds::none) {
      CHECK(answered.reply.rtr == rtr_kinds::rdma_write);
      CHECK(concluded.error == start_error::no_matching_rtr);
    } else {
      CHECK(answered.result.rtr == r.used);
      CHECK(concluded.error == start_error::none);
      CHECK(concluded.rtr == r.used);
    }
  }
}

TEST_CASE("The RTR message of a peer with one kind is of that kind") {
  // Written by hand: what cxgb4 sends by its parameter p2p_type, READ_REQ or RDMA_WRITE.
  for (const auto kind : {rtr_kinds::rdma_read, rtr_kinds::rdma_write}) {
    start_frame of_peer;
    of_peer.enhanced = of_peer.peer_to_peer = true;
    of_peer.ird = of_peer.ord = 32;
    of_peer.rtr = kind;
    CHECK(answer(of_peer, options(4, 4)).reply.rtr == kind);
    CHECK(answer(of_peer, options(4, 4)).result.rtr == kind);
    const start_frame request = make_request(options(4, 4, true));
    of_peer.reply = true;
    of_peer.ird = of_peer.ord = 4;
    const start_result r = conclude(request, of_peer, options(4, 4, true));
    CHECK(r.error == start_error::none);
    CHECK(r.rtr == kind);
  }
}

TEST_CASE("A peer with both kinds chooses its RTR message") {
  // siw and cxgb4 answer such a request by a WRITE, irdma by a READ; each takes either in a reply.
  const start_frame request = make_request(options(4, 4, true));
  CHECK(request.rtr == both);
  for (const auto chosen : {rtr_kinds::rdma_read, rtr_kinds::rdma_write}) {
    start_frame reply = answer(request, options(4, 4)).reply;
    CHECK(reply.rtr == rtr_kinds::rdma_write);
    reply.rtr = chosen;
    CHECK(conclude(request, reply, options(4, 4, true)).rtr == chosen);
  }
}

TEST_CASE("An initiator that begins no reads offers an RDMA read only if it has nothing else") {
  const start_frame request = make_request(options(4, 0, true));
  CHECK(request.ord == 0);
  CHECK(request.rtr == rtr_kinds::rdma_write);
  CHECK(answer(request, options(4, 4)).reply.rtr == rtr_kinds::rdma_write);
}

TEST_CASE("An RDMA read as RTR needs one read, whatever the sides asked for") {
  start_options i = options(0, 0, true);
  i.rtr = rtr_kinds::rdma_read;
  const start_frame request = make_request(i);
  CHECK(request.ord == 1);
  const start_answer answered = answer(request, options(0, 0));
  CHECK(answered.result.ird == 1);
  CHECK(answered.reply.ird == 1);
  CHECK(conclude(request, answered.reply, i).ord == 1);
}

TEST_CASE("A reply that does not agree to peer-to-peer mode ends the connection") {
  const start_options i = options(1, 1, true);
  const start_frame request = make_request(i);
  start_frame reply = answer(request, options(1, 1)).reply;
  reply.peer_to_peer = false;
  CHECK(conclude(request, reply, i).error == start_error::no_matching_rtr);
}

TEST_CASE("Markers are refused by both sides") {
  const start_options own = options(1, 1);
  start_frame request = make_request(own);
  start_frame reply = answer(request, own).reply;
  CHECK_FALSE(request.markers);
  CHECK_FALSE(reply.markers);
  reply.markers = true;
  CHECK(conclude(request, reply, own).error == start_error::markers);
  request.markers = true;
  const start_answer answered = answer(request, own);
  CHECK(answered.result.error == start_error::markers);
  CHECK(answered.reply.rejected);
  CHECK_FALSE(answered.reply.markers);
}

TEST_CASE("A rejection has the revision of the request and ends the connection") {
  const start_options own = options(1, 1);
  const start_frame request = make_request(own);
  const start_frame rejection = make_rejection(request);
  CHECK(rejection.reply);
  CHECK(rejection.rejected);
  CHECK(rejection.revision == 2);
  CHECK(rejection.enhanced);
  CHECK(conclude(request, rejection, own).error == start_error::rejected);
}

TEST_CASE("A reply of another revision, or not enhanced, ends the connection") {
  const start_options own = options(1, 1);
  const start_frame request = make_request(own);
  start_frame reply = answer(request, own).reply;
  reply.enhanced = false;
  CHECK(conclude(request, reply, own).error == start_error::reply_mismatch);
  reply.revision = 1;
  CHECK(conclude(request, reply, own).error == start_error::reply_mismatch);
}

TEST_CASE("Errors of the negotiation have a Terminate message") {
  CHECK(to_protocol_error(start_error::insufficient_ird) ==
        mpa_error(mpa_error_code::insufficient_ird));
  CHECK(to_protocol_error(start_error::no_matching_rtr) ==
        mpa_error(mpa_error_code::no_matching_rtr));
}

TEST_CASE("After any other start error the connection is closed without a Terminate message") {
  for (const auto e : {start_error::none, start_error::key, start_error::revision,
                       start_error::private_data_length, start_error::enhanced_data_length,
                       start_error::rejected, start_error::markers, start_error::reply_mismatch})
    CHECK_FALSE(to_protocol_error(e));
}

TEST_CASE("A negotiation that fails has decided about CRCs, for the Terminate message") {
  for (const bool crc : {false, true}) {
    start_options i = options(1, 1, true);
    start_options a = options(8, 8);
    a.crc = crc;
    const start_frame request = make_request(i);
    start_frame reply = answer(request, a).reply;
    reply.ord = 5;
    const start_result insufficient = conclude(request, reply, i);
    CHECK(insufficient.error == start_error::insufficient_ird);
    CHECK(insufficient.crc == crc);
    reply.ord = 1;
    reply.rtr = rtr_kinds::zero_length_fulpdu;
    const start_result unmatched = conclude(request, reply, i);
    CHECK(unmatched.error == start_error::no_matching_rtr);
    CHECK(unmatched.crc == crc);
  }
}
