// SPDX-License-Identifier: BSL-1.0
#include "support/raw_connection.hpp"

#include "iwarp/mpa_negotiation.hpp"

#include <catch2/catch.hpp>
#include <rdma/rdma_verbs.h>

namespace soft::test {

iwarp::start_frame request_of(std::size_t data) {
  iwarp::start_options o;
  o.ird = o.ord = 4;
  iwarp::start_frame f = make_request(o);
  REQUIRE(f.set_private_data(std::vector<std::byte>(data, std::byte{7})));
  return f;
}

accepted::accepted(std::span<const std::byte> first, int segment) {
  const auto [id, port] = listen();
  listener.id = id;
  peer.emplace(port, segment);
  const iwarp::start_bytes request = encode(request_of());
  std::vector<std::byte> all(request.view().begin(), request.view().end());
  all.insert(all.end(), first.begin(), first.end());
  peer->send(all);
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  e.make_queue_pair();
  constexpr int local = IBV_ACCESS_LOCAL_WRITE;
  mr.reset(ibv_reg_mr(e.id->pd, memory.data(), memory.size(),
                      local | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  closed.reset(ibv_reg_mr(e.id->pd, memory.data(), memory.size(), local));
  REQUIRE((mr && closed));
}

accepted::~accepted() {
  mr.reset(); // before the domain
  closed.reset();
}

void accepted::accept() {
  REQUIRE(soft::test::accept(e) == 0);
  CHECK_FALSE(peer->start(true).rejected);
}

void accepted::receive(std::size_t size) {
  REQUIRE(rdma_post_recv(e.id, nullptr, memory.data(), size, mr.get()) == 0);
}

connected_to_raw::connected_to_raw(std::uint16_t ird) : context(open_soft()), s(*context) {
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  REQUIRE(s.to(IBV_QPS_RTR, number_of_raw_peer, 0) == 0);
  REQUIRE(s.to(IBV_QPS_RTS) == 0);
  peer.emplace(*s.qp);
  iwarp::start_options o;
  o.peer_to_peer = true;
  o.ird = ird;
  o.ord = 4;
  peer->send_request(*s.qp, o);
  const iwarp::start_frame reply = peer->start(true);
  CHECK_FALSE(reply.rejected);
  CHECK(reply.ord == ird);
  peer->send({.op = iwarp::opcode::rdma_write}, {}); // the device may send from now on
}

void connected_to_raw::read(std::size_t n) {
  ibv_sge e = s.element(0, 8);
  std::vector<ibv_send_wr> all;
  for (std::size_t i = 1; i <= n; ++i)
    all.push_back(side::request(i, IBV_WR_RDMA_READ, e));
  for (std::size_t i = 1; i < n; ++i)
    all[i - 1].next = &all[i];
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(s.qp.get(), all.data(), &bad) == 0);
}

} // namespace soft::test
