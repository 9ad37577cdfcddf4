// SPDX-License-Identifier: BSL-1.0
// Ids of librdmacm whose own queue pair ends, while the peer is in another process.
#include "support/raw_connection.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <poll.h>
#include <rdma/rdma_verbs.h>

using namespace soft::test;

namespace {

// The events of the id. Waits for the first.
std::vector<rdma_cm_event_type> events_of(endpoint& e) {
  std::vector<rdma_cm_event_type> all;
  rdma_event_channel* const channel = e.id->channel;
  pollfd p{channel->fd, POLLIN, 0};
  for (int patience = 10'000; poll(&p, 1, patience) == 1; patience = 0) {
    rdma_cm_event* event = nullptr;
    REQUIRE(rdma_get_cm_event(channel, &event) == 0);
    all.push_back(event->event);
    rdma_ack_cm_event(event);
  }
  return all;
}

// After rdma_disconnect(3), which has waited for an event unless the id had ended before.
std::vector<rdma_cm_event_type> events_of_disconnected(endpoint& e) {
  std::vector<rdma_cm_event_type> all;
  if (e.id->event != nullptr && e.id->event->event == RDMA_CM_EVENT_DISCONNECTED)
    all.push_back(e.id->event->event);
  pollfd p{e.id->channel->fd, POLLIN, 0};
  if (all.empty() || poll(&p, 1, 0) == 1)
    for (const auto what : events_of(e))
      all.push_back(what);
  return all;
}

const std::vector<rdma_cm_event_type> one_disconnection{RDMA_CM_EVENT_DISCONNECTED};

int to_error(ibv_qp* qp) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

// The peer ends the connection, too, and the program disconnects. No other event comes.
void check_ends_once(accepted& c) {
  CHECK(events_of(c.e) == one_disconnection);
  c.peer.reset();
  CHECK(rdma_disconnect(c.e.id) == 0);
  pollfd p{c.e.id->channel->fd, POLLIN, 0};
  CHECK(poll(&p, 1, 0) == 0);
}

} // namespace

TEST_CASE("An id gets the disconnect event if its queue pair is modified to the error state") {
  accepted c;
  c.accept();
  REQUIRE(to_error(c.e.id->qp) == 0);
  check_ends_once(c);
}

TEST_CASE("An id gets the disconnect event if a request fails for lack of its memory") {
  accepted c;
  c.accept();
  c.receive(64);
  std::byte other[64];
  ibv_sge e{reinterpret_cast<std::uintptr_t>(other), 8, 0x12345600};
  ibv_send_wr wr = side::request(1, IBV_WR_SEND, e);
  ibv_send_wr* bad = nullptr;
  c.peer->send({.op = soft::iwarp::opcode::rdma_write}, {}); // the device may send from now on
  REQUIRE(ibv_post_send(c.e.id->qp, &wr, &bad) == 0);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_LOC_PROT_ERR);
  check_ends_once(c);
}

TEST_CASE("An id gets the disconnect event if the settings fail a request") {
  accepted c;
  c.accept();
  c.peer->send({.op = soft::iwarp::opcode::rdma_write}, {}); // the device may send from now on
  const with_settings set("fail=send:1:rem_access");
  REQUIRE(rdma_post_send(c.e.id, nullptr, c.memory.data(), 8, c.mr.get(), IBV_SEND_SIGNALED) == 0);
  CHECK(completion(c.e.id->send_cq).status == IBV_WC_REM_ACCESS_ERR);
  check_ends_once(c);
}

TEST_CASE("An id gets the disconnect event if its queue pair is destroyed") {
  accepted c;
  c.accept();
  rdma_destroy_qp(c.e.id);
  check_ends_once(c);
}

TEST_CASE(
    "A disconnection by the program is one event, whether the queue pair fails first or not") {
  accepted c;
  c.accept();
  SECTION("it fails first") { REQUIRE(to_error(c.e.id->qp) == 0); }
  SECTION("it does not") {}
  CHECK(rdma_disconnect(c.e.id) == 0);
  c.peer.reset();
  CHECK(events_of_disconnected(c.e) == one_disconnection);
}

TEST_CASE("A connecting id gets the disconnect event if its queue pair fails") {
  endpoint e;
  REQUIRE(connect_to(
              [&](raw_peer& peer) {
                const soft::iwarp::start_frame request = peer.start(false);
                peer.send(soft::iwarp::answer(request, {.ird = 4, .ord = 4}).reply);
                CHECK(peer.next().header.op == soft::iwarp::opcode::rdma_write);
                to_error(e.id->qp);
                peer.at_end();
              },
              e) == 0);
  CHECK(e.id->event->event == RDMA_CM_EVENT_ESTABLISHED);
  CHECK(events_of(e) == one_disconnection);
}

TEST_CASE("A queue pair that is destroyed before the acceptance leaves the request") {
  accepted c;
  {
    const with_settings set("fail=modify_qp:3:enomem"); // when it knows its connection
    rdma_conn_param p{};
    CHECK(rdma_accept(c.e.id, &p) == -1);
    CHECK(errno == ENOMEM);
  }
  rdma_destroy_qp(c.e.id);
  SECTION("which may be rejected") {
    CHECK(rdma_reject(c.e.id, "no", 2) == 0);
    const auto reply = c.peer->start(true);
    CHECK(reply.rejected);
    CHECK(reply.private_data().size() == 2);
  }
  SECTION("which another one may take") {
    c.mr.reset();
    c.closed.reset();
    c.e.make_queue_pair();
    c.accept();
    CHECK(state_of(*c.e.id->qp) == IBV_QPS_RTS);
  }
}
