// SPDX-License-Identifier: BSL-1.0
// The first message of an initiator in peer-to-peer mode (RFC 6581, section 9.2), if it is a READ.
// Adapters of Chelsio know this kind alone, by default.
#include "support/raw_connection.hpp"

#include "iwarp/rdmap_payload.hpp"

#include <catch2/catch.hpp>
#include <rdma/rdma_verbs.h>

using namespace soft::test;
using namespace soft::iwarp;

namespace {

start_options reads_only(std::uint16_t reads) {
  start_options o;
  o.peer_to_peer = true;
  o.rtr = rtr_kinds::rdma_read;
  o.ird = o.ord = reads;
  return o;
}

read_request request_in(const raw_peer::segment& s) {
  read_request r{};
  if (s.header.op != opcode::rdma_read_request || s.payload.size() != read_request_size)
    throw std::runtime_error("another message");
  decode(std::span<const std::byte, read_request_size>(s.payload), r);
  return r;
}

void answer_read(raw_peer& peer, const read_request& r, std::span<const std::byte> data) {
  peer.send({.op = opcode::rdma_read_response,
             .length = static_cast<std::uint32_t>(data.size()),
             .stag = r.sink_stag,
             .tagged_offset = r.sink_offset},
            data);
}

// A peer that has accepted, and has got the first message.
read_request accept_by_read(raw_peer& peer, bool& offered) {
  const start_frame request = peer.start(false);
  offered = has(request.rtr, rtr_kinds::rdma_read) && has(request.rtr, rtr_kinds::rdma_write);
  peer.send(answer(request, reads_only(1)).reply);
  return request_in(peer.next());
}

} // namespace

TEST_CASE("A connection begins by a READ of a peer that begins by nothing else") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  raw_peer peer(port);
  peer.send(make_request(reads_only(4)));
  const auto first = encode(read_request{77, 0, 0, 1, 0});
  peer.send({.op = opcode::rdma_read_request, .length = read_request_size}, first);
  endpoint e;
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  e.make_queue_pair();
  rdma_conn_param p{};
  p.responder_resources = 0; // the first message needs one
  REQUIRE(rdma_accept(e.id, &p) == 0);
  CHECK(e.id->event->event == RDMA_CM_EVENT_ESTABLISHED);
  const start_frame reply = peer.start(true);
  CHECK(reply.rtr == rtr_kinds::rdma_read);
  CHECK(reply.ird == 1);
  const raw_peer::segment s = peer.next();
  CHECK(s.header.op == opcode::rdma_read_response);
  CHECK(s.header.stag == 77);
  CHECK(s.payload.empty());
}

TEST_CASE("A connection begins by a READ to a peer that takes nothing else") {
  endpoint e;
  bool offered = false;
  read_request first{}, second{};
  std::array<std::byte, 8> memory{};
  const std::array<std::byte, 8> bytes{std::byte{1}, std::byte{2}};
  ibv_wc wc{};
  REQUIRE(connect_to(
              [&](raw_peer& peer) {
                first = accept_by_read(peer, offered);
                const owned_mr mr(
                    ibv_reg_mr(e.id->pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
                // The first READ is the one that may be outstanding, so this one waits.
                rdma_post_read(e.id, nullptr, memory.data(), memory.size(), mr.get(),
                               IBV_SEND_SIGNALED, 0x1000, 5);
                answer_read(peer, first, {});
                second = request_in(peer.next());
                answer_read(peer, second, bytes);
                wc = completion(e.id->send_cq);
              },
              e) == 0);
  CHECK(offered);
  CHECK(e.id->event->event == RDMA_CM_EVENT_ESTABLISHED);
  CHECK(first.length == 0);
  CHECK(second.length == 8);
  CHECK(second.source_stag == 5);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(memory == bytes);
}

TEST_CASE("Bytes in the answer to the first message end the connection") {
  endpoint e;
  bool offered = false;
  std::optional<terminate> t;
  REQUIRE(connect_to(
              [&](raw_peer& peer) {
                answer_read(peer, accept_by_read(peer, offered), std::array<std::byte, 4>{});
                t = peer.next_terminate();
              },
              e) == 0);
  REQUIRE(t);
  CHECK(t->error() == ddp_error(ddp_tagged_code::base_or_bounds_violation));
}

TEST_CASE("An answer to the first message that comes before it ends the connection") {
  endpoint e;
  std::optional<terminate> t;
  (void)connect_to(
      [&](raw_peer& peer) {
        peer.send(answer(peer.start(false), reads_only(1)).reply);
        answer_read(peer, {}, {});
        // The READ may have come before.
        while (!t) {
          const raw_peer::segment s = peer.next();
          if (s.header.op == opcode::terminate)
            t = terminate::decode(s.payload);
          else
            answer_read(peer, {}, {});
        }
      },
      e);
  REQUIRE(t);
}
