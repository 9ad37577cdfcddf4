// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "catch.hpp"
#include "device/connecting/cm_support.hpp"
#include "queues/queue_pair_impl.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <fcntl.h>
#include <optional>
#include <rdma/rdma_cma.h>
#include <utility>

namespace test {

/// A connector that sends its request and then does not continue: rdma_cm's own calls, without
/// reading their events.
class silent_connector {
public:
  explicit silent_connector(const endpoint& to, const ibv_qp& qp, private_data data = {}) {
    rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP);
    endpoint copy = to;
    REQUIRE(rdma_resolve_addr(id_, nullptr, static_cast<sockaddr*>(copy.data()), 5000) == 0);
    next(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id_, 5000) == 0);
    next(RDMA_CM_EVENT_ROUTE_RESOLVED);
    rdma_conn_param p{};
    p.qp_num = qp.qp_num;
    p.private_data = data.data();
    p.private_data_len = static_cast<std::uint8_t>(data.size());
    REQUIRE(rdma_connect(id_, &p) == 0);
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  }
  silent_connector(const silent_connector&) = delete;
  ~silent_connector() {
    give_up();
    rdma_destroy_event_channel(channel_);
  }
  /// Runs the context until it has been accepted or rejected; true if accepted.
  bool accepted(asio::io_context& io) {
    bool arrived = false;
    asio::posix::stream_descriptor events(io, channel_->fd);
    events.async_wait(asio::posix::stream_descriptor::wait_read,
                      [&arrived](error_code) { arrived = true; });
    until(io, [&arrived] { return arrived; });
    events.release();
    return take_event() == RDMA_CM_EVENT_CONNECT_RESPONSE;
  }
  /// Whether it has been accepted or rejected.
  bool answered() { return take_event().has_value(); }
  /// Connects the queue pair once the request has been accepted, without confirming that.
  void connect_silently(queue_pair& qp) {
    for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      ibv_qp_attr attr{};
      attr.qp_state = state;
      int mask = 0;
      REQUIRE(rdma_init_qp_attr(id_, &attr, &mask) == 0);
      REQUIRE_FALSE(qp.impl()->modify(attr, mask));
    }
    qp.impl()->connected(true);
  }
  void give_up() {
    if (id_ != nullptr)
      rdma_destroy_id(std::exchange(id_, nullptr));
  }

private:
  std::optional<rdma_cm_event_type> take_event() {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel_, &event) != 0)
      return {};
    const rdma_cm_event_type result = event->event;
    rdma_ack_cm_event(event);
    return result;
  }
  void next(rdma_cm_event_type expected) {
    rdma_cm_event* event = nullptr;
    REQUIRE(rdma_get_cm_event(channel_, &event) == 0);
    CHECK(event->event == expected);
    rdma_ack_cm_event(event);
  }

  rdma_event_channel* channel_ = rdma_create_event_channel();
  rdma_cm_id* id_ = nullptr;
};

/// The connector of a meeting: it has been accepted, and does not confirm that.
struct unconfirmed {
  explicit unconfirmed(meeting& of) : m(of), request(of.where(), *of.a.native_handle()) {
    CHECK(request.accepted(m.io));
  }
  void send() {
    request.connect_silently(m.a);
    m.a.async_send(m.ma.buffer(0, 8), message.handler());
  }

  meeting& m;
  silent_connector request;
  sent message;
};

} // namespace test
