// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_CM_PAIR_HPP
#define SOFT_TEST_DEVICE_CM_PAIR_HPP

#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <poll.h>
#include <rdma/rdma_cma.h>

namespace soft::test {

/// One end of a connection of librdmacm, whose events come by a channel of its own.
struct cm_end {
  cm_end() { REQUIRE(channel != nullptr); }
  ~cm_end() {
    if (id != nullptr) {
      if (id->qp != nullptr)
        rdma_destroy_qp(id);
      rdma_destroy_id(id);
    }
    rdma_destroy_event_channel(channel);
  }
  cm_end(const cm_end&) = delete;
  cm_end& operator=(const cm_end&) = delete;

  /// The next event, acknowledged: the id that it is about.
  rdma_cm_id* expect(rdma_cm_event_type what) {
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(channel, &e) == 0);
    CHECK(e->event == what);
    rdma_cm_id* const about = e->id;
    rdma_ack_cm_event(e);
    return about;
  }
  bool has_event() const {
    pollfd p{channel->fd, POLLIN, 0};
    return poll(&p, 1, 0) != 0;
  }
  /// Makes the id, and resolves the address and the route.
  void resolve(sockaddr_in to) {
    REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000) == 0);
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id, 1000) == 0);
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  void make_queue_pair() {
    ibv_qp_init_attr a{};
    a.cap.max_send_wr = a.cap.max_recv_wr = 4;
    a.cap.max_send_sge = a.cap.max_recv_sge = 1;
    a.qp_type = IBV_QPT_RC;
    REQUIRE(rdma_create_qp(id, nullptr, &a) == 0);
  }

  rdma_event_channel* channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
};

/// Two ids of this process that are connected, each with a queue pair.
struct cm_pair {
  /// The retries for missing receives that each side asks of the other; nullopt: the acceptance
  /// has no parameters.
  explicit cm_pair(std::uint8_t of_client = 7, std::optional<std::uint8_t> of_server = 7) {
    rdma_cm_id* listener = nullptr;
    REQUIRE(rdma_create_id(server.channel, &listener, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in at = local_address(0);
    REQUIRE(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)) == 0);
    REQUIRE(rdma_listen(listener, 1) == 0);
    at.sin_port = rdma_get_src_port(listener);
    client.resolve(at);
    client.make_queue_pair();
    rdma_conn_param p{};
    p.retry_count = 7;
    p.rnr_retry_count = of_client;
    REQUIRE(rdma_connect(client.id, &p) == 0);
    server.id = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    server.make_queue_pair();
    p.rnr_retry_count = of_server.value_or(0);
    REQUIRE(rdma_accept(server.id, of_server ? &p : nullptr) == 0);
    client.expect(RDMA_CM_EVENT_ESTABLISHED);
    server.expect(RDMA_CM_EVENT_ESTABLISHED);
    rdma_destroy_id(listener);
  }

  cm_end client, server;
};

} // namespace soft::test

#endif
