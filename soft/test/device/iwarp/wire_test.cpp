// SPDX-License-Identifier: BSL-1.0
// The device and a peer of iWARP that is a TCP socket: what the device answers to a peer's
// mistakes.
#include "support/fixture.hpp"
#include "support/raw_connection.hpp"

#include "iwarp/mpa_negotiation.hpp"
#include "iwarp/rdmap_payload.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <rdma/rdma_verbs.h>

using namespace soft::test;
using namespace soft::iwarp;
using bytes = std::vector<std::byte>;

namespace {

protocol_error protection(rdmap_error_code c) {
  return rdmap_error(rdmap_error_type::remote_protection, c);
}

} // namespace

TEST_CASE("An event has all private data of a request, also more than InfiniBand allows") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  for (const std::size_t size : {0, 10, 56, 57, 255}) {
    raw_peer peer(port);
    peer.send(request_of(size));
    endpoint e;
    REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
    const rdma_conn_param& told = e.id->event->param.conn;
    CHECK(told.private_data_len == std::max<std::size_t>(size, 56));
    const auto* const first = static_cast<const std::byte*>(told.private_data);
    CHECK(std::count(first, first + told.private_data_len, std::byte{7}) == std::ptrdiff_t(size));
    REQUIRE(rdma_reject(e.id, nullptr, 0) == 0);
    CHECK(peer.start(true).rejected);
    CHECK(peer.at_end());
  }
}

TEST_CASE("A request with more private data than an event can have is rejected") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  raw_peer peer(port);
  peer.send(request_of(256));
  CHECK(peer.start(true).rejected);
  CHECK(peer.at_end());
}

TEST_CASE("A WRITE that is refused is answered with the reason") {
  struct row {
    std::uint32_t flip;
    std::uint64_t offset;
    bool closed;
    protocol_error error;
  };
  const row rows[] = {
      {0xff00, 0, false, ddp_error(ddp_tagged_code::invalid_stag)},
      {0, 4090, false, ddp_error(ddp_tagged_code::base_or_bounds_violation)},
      {0, 0, true, ddp_error(ddp_tagged_code::invalid_stag)},
      {0, ~std::uint64_t{2}, false, ddp_error(ddp_tagged_code::to_wrap)},
  };
  for (const row& r : rows) {
    accepted a;
    a.accept();
    a.receive(16);
    const std::uint64_t at = r.offset > 4096 ? r.offset : a.address() + r.offset;
    a.peer->send({.op = opcode::rdma_write,
                  .length = 8,
                  .stag = (r.closed ? a.closed : a.mr)->rkey ^ r.flip,
                  .tagged_offset = at},
                 bytes(8));
    const terminate t = a.peer->next_terminate();
    CHECK(t.error() == r.error);
    CHECK(t.ddp_header().size() == tagged_header_size);
    CHECK(completion(a.e.id->recv_cq).status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("A READ that is refused is answered with the reason and its request") {
  struct row {
    std::uint32_t flip;
    std::uint64_t offset;
    bool closed;
    rdmap_error_code code;
  };
  const row rows[] = {
      {0xff00, 0, false, rdmap_error_code::invalid_stag},
      {0, 4090, false, rdmap_error_code::base_or_bounds_violation},
      {0, 0, true, rdmap_error_code::access_rights_violation},
  };
  for (const row& r : rows) {
    accepted a;
    a.accept();
    const read_request request{1, 2, 8, (r.closed ? a.closed : a.mr)->rkey ^ r.flip,
                               a.address() + r.offset};
    a.peer->send({.op = opcode::rdma_read_request, .length = read_request_size}, encode(request));
    const terminate t = a.peer->next_terminate();
    CHECK(t.error() == protection(r.code));
    REQUIRE(t.rdma_header().size() == read_request_size);
    read_request quoted;
    decode(t.rdma_header().first<read_request_size>(), quoted);
    CHECK(quoted == request);
  }
}

TEST_CASE("A READ of no bytes is answered whatever memory it names") {
  accepted a;
  a.accept();
  a.peer->send({.op = opcode::rdma_read_request, .length = read_request_size},
               encode(read_request{5, 6, 0, 0xdead, 77}));
  const raw_peer::segment s = a.peer->next();
  CHECK(s.header.op == opcode::rdma_read_response);
  CHECK(s.header.stag == 5);
  CHECK(s.header.tagged_offset == 6);
  CHECK(s.payload.empty());
}

TEST_CASE("An atomic of an unaligned word is a remote operation error") {
  accepted a;
  a.accept();
  owned_mr all(ibv_reg_mr(a.e.id->pd, a.memory.data(), a.memory.size(),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  REQUIRE(all);
  atomic_request r;
  r.stag = all->rkey;
  r.offset = a.address() + 4;
  a.peer->send({.op = opcode::atomic_request, .length = atomic_request_size}, encode(r));
  CHECK(a.peer->next_terminate().error() ==
        rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::catastrophic_stream));
  CHECK(next_event(*a.e.id->verbs) == IBV_EVENT_QP_ACCESS_ERR);
}

TEST_CASE("A SEND that invalidates what it must not ends the connection") {
  accepted a;
  a.accept();
  a.receive(16);
  a.receive(16);
  a.peer->send({.op = opcode::send_with_invalidate, .length = 4, .stag = a.mr->rkey}, bytes(4));
  CHECK(a.peer->next_terminate().error() ==
        protection(rdmap_error_code::stag_cannot_be_invalidated));
  CHECK(completion(a.e.id->recv_cq).status != IBV_WC_SUCCESS);
  CHECK(completion(a.e.id->recv_cq).status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("Segments that come before the acceptance wait for it") {
  fpdu_writer early(false);
  accepted a(raw_peer::fpdu(early, {.op = opcode::send, .length = 8}, bytes(8, std::byte{9})));
  a.receive(16);
  a.accept();
  const ibv_wc wc = completion(a.e.id->recv_cq);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.byte_len == 8);
  CHECK(a.memory[7] == std::byte{9});
}

TEST_CASE("A message that is too long for a receive that comes later ends the connection") {
  accepted a;
  a.accept();
  a.peer->send({.op = opcode::send, .length = 64}, bytes(64));
  a.receive(16);
  CHECK(completion(a.e.id->recv_cq).status == IBV_WC_LOC_LEN_ERR);
  CHECK(a.peer->next_terminate().error() == ddp_error(ddp_untagged_code::message_too_long));
}

TEST_CASE("A Terminate message arrives although the peer goes on sending") {
  accepted a;
  a.accept();
  bytes all =
      raw_peer::fpdu(a.peer->writer, {.op = opcode::rdma_write, .length = 8, .stag = 1}, bytes(8));
  all.resize(all.size() + 300000);
  a.peer->send(all);
  CHECK(a.peer->next_terminate().error() == ddp_error(ddp_tagged_code::invalid_stag));
  CHECK(a.peer->at_end());
}

TEST_CASE("After a local error of a request the peer gets a Terminate message") {
  with_settings set("fail=send:1:loc_prot");
  accepted a;
  a.accept();
  a.peer->send({.op = opcode::rdma_write}, {});
  REQUIRE(rdma_post_send(a.e.id, nullptr, a.memory.data(), 8, a.mr.get(), IBV_SEND_SIGNALED) == 0);
  CHECK(completion(a.e.id->send_cq).status == IBV_WC_LOC_PROT_ERR);
  const terminate t = a.peer->next_terminate();
  CHECK(t.error().layer == error_layer::rdmap);
  CHECK(t.error().type == static_cast<std::uint8_t>(rdmap_error_type::local_catastrophic));
}

TEST_CASE("An FPDU fits into a TCP segment of its connection") {
  for (const int segment : {0, 1448}) {
    accepted a(std::span<const std::byte>(), segment);
    a.accept();
    a.peer->send({.op = opcode::rdma_write}, {});
    bytes large(200000);
    owned_mr mr(ibv_reg_mr(a.e.id->pd, large.data(), large.size(), 0));
    REQUIRE(mr);
    REQUIRE(rdma_post_send(a.e.id, nullptr, large.data(), large.size(), mr.get(),
                           IBV_SEND_SIGNALED) == 0);
    std::size_t most = 0;
    for (bool last = false; !last;) {
      const raw_peer::segment s = a.peer->next();
      most = std::max(most, s.ulpdu);
      last = s.header.last;
    }
    // The loopback interface has segments of up to 64 KiB, and TCP begins with smaller ones. TCP's
    // options may take room.
    CHECK(most <= (segment == 0 ? 64768u : 1442u));
    CHECK(most > (segment == 0 ? 16000u : 1400u));
    CHECK(completion(a.e.id->send_cq).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("A reply that the negotiation does not allow is answered with a Terminate message") {
  for (const bool too_many : {true, false}) {
    endpoint e;
    std::optional<terminate> t;
    bool ended = false;
    const auto part = [&](raw_peer& peer) {
      start_options own;
      own.ird = own.ord = 4;
      start_frame reply = answer(peer.start(false), own).reply;
      if (too_many)
        reply.ord = 1000;
      else
        reply.rtr = rtr_kinds::zero_length_fulpdu;
      peer.send(reply);
      t = peer.next_terminate();
      ended = peer.at_end();
    };
    CHECK(connect_to(part, e) == -1);
    CHECK(e.id->event->event == RDMA_CM_EVENT_CONNECT_ERROR);
    REQUIRE(t);
    CHECK(t->error() ==
          mpa_error(too_many ? mpa_error_code::insufficient_ird : mpa_error_code::no_matching_rtr));
    CHECK(ended);
  }
}

TEST_CASE("Connections within the machine ask for CRCs only if the settings say so") {
  for (const bool crc : {false, true}) {
    with_settings set(crc ? "crc=1" : "");
    endpoint e;
    bool asked = !crc;
    CHECK(connect_to(
              [&](raw_peer& peer) {
                const start_frame request = peer.start(false);
                asked = request.crc;
                peer.send(make_rejection(request));
              },
              e) == -1);
    CHECK(asked == crc);
    CHECK(e.id->event->event == RDMA_CM_EVENT_REJECTED);
  }
}

TEST_CASE("The queues that rdma_create_qp makes name their id") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  endpoint e;
  resolve(e, port);
  CHECK(e.id->send_cq->cq_context == e.id);
  CHECK(e.id->recv_cq->cq_context == e.id);
}
