// SPDX-License-Identifier: BSL-1.0
// How many READs and atomics are outstanding between processes: IRD and ORD (RFC 6581).
#include "support/raw_connection.hpp"

#include "iwarp/rdmap_payload.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <sys/socket.h>

using namespace soft::test;
using namespace soft::iwarp;
using bytes = std::vector<std::byte>;

namespace {

void append(bytes& to, const bytes& b) { to.insert(to.end(), b.begin(), b.end()); }

bytes read_of(accepted& a) {
  return raw_peer::fpdu(a.peer->writer,
                        {.op = opcode::rdma_read_request, .length = read_request_size},
                        encode(read_request{1, 0, 8, a.mr->rkey, a.address()}));
}
bytes atomic_of(accepted& a) {
  return raw_peer::fpdu(a.peer->writer,
                        {.op = opcode::atomic_request, .length = atomic_request_size},
                        encode(atomic_request{}));
}

} // namespace

TEST_CASE("A peer has as many READs outstanding as were agreed, and not one READ or atomic more") {
  for (const bool atomic : {false, true}) {
    accepted a;
    a.accept();
    // All at once: the first is not answered before the last has come.
    for (int round = 0; round < 2; ++round) {
      bytes four;
      for (int i = 0; i < 4; ++i)
        append(four, read_of(a));
      a.peer->send(four);
      for (int i = 0; i < 4; ++i)
        CHECK(a.peer->next().header.op == opcode::rdma_read_response);
    }
    bytes five;
    for (int i = 0; i < 4; ++i)
      append(five, read_of(a));
    append(five, atomic ? atomic_of(a) : read_of(a));
    a.peer->send(five);
    const terminate t = a.peer->next_terminate();
    CHECK(t.error() == ddp_error(ddp_untagged_code::invalid_msn_no_buffer));
    CHECK(t.ddp_header().size() == untagged_header_size);
    CHECK(a.peer->at_end());
    CHECK(next_event(*a.e.id->verbs) == IBV_EVENT_QP_ACCESS_ERR);
  }
}

TEST_CASE("A queue pair begins no more READs at a time than its peer answers") {
  connected_to_raw c(1);
  c.read(2);
  for (std::uint32_t n = 1; n <= 2; ++n) {
    const raw_peer::segment s = c.peer->next();
    CHECK(s.header.op == opcode::rdma_read_request);
    CHECK(s.header.msn == n);
    std::byte b;
    CHECK(recv(c.peer->socket(), &b, 1, MSG_DONTWAIT) == -1);
    CHECK(errno == EAGAIN);
    REQUIRE(s.payload.size() == read_request_size);
    read_request r;
    decode(std::span<const std::byte, read_request_size>(s.payload), r);
    c.peer->send({.op = opcode::rdma_read_response,
                  .length = r.length,
                  .stag = r.sink_stag,
                  .tagged_offset = r.sink_offset},
                 bytes(r.length));
    const ibv_wc wc = c.s.completion();
    CHECK(wc.wr_id == n);
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("A READ fails if the peer answers none") {
  connected_to_raw c(0);
  c.read(1);
  CHECK(c.s.completion().status == IBV_WC_REM_INV_REQ_ERR);
}
