// SPDX-License-Identifier: BSL-1.0
// Memory that a program deregisters while a message is on its way to it, or from it.
#include "support/raw_connection.hpp"

#include "iwarp/rdmap_payload.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <rdma/rdma_verbs.h>

using namespace soft::test;
using namespace soft::iwarp;
using bytes = std::vector<std::byte>;

namespace {

// A message of ones.
bytes segments(fpdu_writer& w, std::size_t most, const outgoing_message& m) {
  w.set_max_ulpdu(most + untagged_header_size);
  REQUIRE(w.start(m));
  bytes all;
  for (outgoing_segment s; w.next(s);) {
    w.seal(s, {});
    all.insert(all.end(), s.header().begin(), s.header().end());
    all.insert(all.end(), s.length, std::byte{1});
    all.insert(all.end(), s.trailer().begin(), s.trailer().end());
  }
  return all;
}

// Sends the first half of `all`, waits until `arrived` has a byte of it, calls `then`, and sends
// the rest.
template <class Then>
void in_two_halves(raw_peer& peer, const bytes& all, const std::byte& arrived, Then then) {
  const std::span<const std::byte> whole(all);
  peer.send(whole.first(all.size() / 2));
  wait_for(arrived, std::byte{1});
  then();
  peer.send(whole.subspan(all.size() / 2));
}

// Memory that is zero after it was deregistered.
struct own_memory {
  explicit own_memory(ibv_pd* pd, int more = 0) : data(new std::byte[size]()) {
    mr.reset(ibv_reg_mr(pd, data.get(), size, IBV_ACCESS_LOCAL_WRITE | more));
    REQUIRE(mr);
  }
  void deregister() {
    mr.reset();
    std::memset(data.get(), 0, size);
  }
  bool is_untouched() const {
    return std::all_of(data.get(), data.get() + size, [](std::byte b) { return b == std::byte{}; });
  }
  static constexpr std::size_t size = 40'000;
  std::unique_ptr<std::byte[]> data;
  owned_mr mr;
};

// Posts a request without elements, and waits until it is done.
void carry_out(rdma_cm_id* id, ibv_send_wr wr) {
  ibv_send_wr* bad = nullptr;
  wr.send_flags = IBV_SEND_SIGNALED;
  REQUIRE(ibv_post_send(id->qp, &wr, &bad) == 0);
  REQUIRE(completion(id->send_cq).status == IBV_WC_SUCCESS);
}

// Binds a window of type 2 to the whole of a memory. The peer's addresses begin at 0.
void bind(rdma_cm_id* id, ibv_mw& w, std::uint32_t key, const own_memory& to) {
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.mw = &w;
  wr.bind_mw.rkey = key;
  wr.bind_mw.bind_info = {to.mr.get(), reinterpret_cast<std::uintptr_t>(to.data.get()),
                          own_memory::size, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED};
  carry_out(id, wr);
}

} // namespace

TEST_CASE("A message does not go on to a receive whose memory is deregistered") {
  const bool still_readable = GENERATE(false, true);
  for (const std::size_t segment : {std::size_t(20'000), std::size_t(40'000)}) {
    INFO("segments of " << segment << " bytes");
    accepted a;
    own_memory own(a.e.id->pd);
    owned_mr without_right;
    if (still_readable)
      without_right.reset(ibv_reg_mr(a.e.id->pd, own.data.get(), own_memory::size, 0));
    REQUIRE(rdma_post_recv(a.e.id, nullptr, own.data.get(), own_memory::size, own.mr.get()) == 0);
    a.accept();
    const bytes all =
        segments(a.peer->writer, segment, {.op = opcode::send, .length = own_memory::size});
    in_two_halves(*a.peer, all, own.data[0], [&] { own.deregister(); });
    const ibv_wc wc = completion(a.e.id->recv_cq);
    CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
    CHECK(own.is_untouched());
  }
}

TEST_CASE("A WRITE does not go on to memory that its window has left for another one") {
  accepted a;
  own_memory first(a.e.id->pd, IBV_ACCESS_MW_BIND), second(a.e.id->pd, IBV_ACCESS_MW_BIND);
  const std::unique_ptr<ibv_mw, destroys<ibv_dealloc_mw>> w(
      ibv_alloc_mw(a.e.id->pd, IBV_MW_TYPE_2));
  REQUIRE(w);
  a.accept();
  a.peer->send({.op = opcode::rdma_write}, {}); // the device may send from now on
  const std::uint32_t key = ibv_inc_rkey(w->rkey);
  bind(a.e.id, *w, key, first);
  const bytes all = segments(a.peer->writer, own_memory::size,
                             {.op = opcode::rdma_write, .length = own_memory::size, .stag = key});
  in_two_halves(*a.peer, all, first.data[0], [&] {
    ibv_send_wr invalidate{};
    invalidate.opcode = IBV_WR_LOCAL_INV;
    invalidate.invalidate_rkey = key;
    carry_out(a.e.id, invalidate);
    first.deregister();
    bind(a.e.id, *w, key, second);
  });
  CHECK(a.peer->next_terminate().error() == soft::iwarp::ddp_error(ddp_tagged_code::invalid_stag));
  CHECK(next_event(*a.e.id->verbs) == IBV_EVENT_QP_ACCESS_ERR);
  CHECK(first.is_untouched());
  CHECK(second.is_untouched());
}

TEST_CASE("The answer to a READ does not go on to memory that is deregistered") {
  for (const std::size_t segment : {std::size_t(20'000), std::size_t(40'000)}) {
    INFO("segments of " << segment << " bytes");
    connected_to_raw c(4);
    own_memory own(c.s.pd.get());
    ibv_sge e{reinterpret_cast<std::uintptr_t>(own.data.get()), own_memory::size, own.mr->lkey};
    ibv_send_wr wr = side::request(1, IBV_WR_RDMA_READ, e), *bad = nullptr;
    REQUIRE(ibv_post_send(c.s.qp.get(), &wr, &bad) == 0);
    const raw_peer::segment s = c.peer->next();
    REQUIRE(s.payload.size() == read_request_size);
    read_request r;
    decode(std::span<const std::byte, read_request_size>(s.payload), r);
    const bytes all = segments(c.peer->writer, segment,
                               {.op = opcode::rdma_read_response,
                                .length = r.length,
                                .stag = r.sink_stag,
                                .tagged_offset = r.sink_offset});
    in_two_halves(*c.peer, all, own.data[0], [&] { own.deregister(); });
    CHECK(c.s.completion().status == IBV_WC_LOC_PROT_ERR);
    CHECK(own.is_untouched());
  }
}

TEST_CASE("A message does not go on from memory that is deregistered") {
  connected_to_raw c(4);
  // More than the sockets and the device hold.
  constexpr std::size_t large = 16 << 20;
  const std::unique_ptr<std::byte[]> data(new std::byte[large]());
  owned_mr mr(ibv_reg_mr(c.s.pd.get(), data.get(), large, 0));
  REQUIRE(mr);
  ibv_sge e{reinterpret_cast<std::uintptr_t>(data.get()), large, mr->lkey};
  ibv_send_wr wr = side::request(1, IBV_WR_SEND, e), *bad = nullptr;
  REQUIRE(ibv_post_send(c.s.qp.get(), &wr, &bad) == 0);
  CHECK(c.peer->next().payload.front() == std::byte{}); // it has begun
  mr.reset();
  std::memset(data.get(), 1, large);
  std::size_t rest = 0;
  for (raw_peer::segment s = c.peer->next(); s.header.op == opcode::send; s = c.peer->next())
    rest += s.payload.size();
  CHECK(rest < large / 2);
  CHECK(c.s.completion().status == IBV_WC_LOC_PROT_ERR);
}
