// SPDX-License-Identifier: BSL-1.0
// The messages of the connection manager between two ids of one process. States and events are
// those of the kernel's IB CM.
#include "cm/addresses.hpp"
#include "cm/cm_id.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <vector>

namespace soft {
namespace {

std::vector<cm_id*>& listeners() {
  static auto* const all = new std::vector<cm_id*>;
  return *all;
}

bool serves(sockaddr& listener, sockaddr& address) {
  if (port_of(listener) != port_of(address))
    return false;
  if (is_any(listener))
    return listener.sa_family == address.sa_family || listener.sa_family == AF_INET6;
  const ibv_gid a = gid_of(listener), b = gid_of(address);
  return std::memcmp(a.raw, b.raw, 16) == 0;
}

} // namespace

int start_listening(cm_id& id) {
  if (const int error = listen_to_others(id))
    return error;
  listeners().push_back(&id);
  return 0;
}

void stop_listening(cm_id& id) {
  auto& all = listeners();
  all.erase(std::remove(all.begin(), all.end(), &id), all.end());
  ignore_others(id);
}

// An exact address comes before any address.
cm_id* find_listener(sockaddr& address) {
  cm_id* any = nullptr;
  for (cm_id* const l : listeners()) {
    sockaddr& own = l->route.addr.src_addr;
    if (!serves(own, address))
      continue;
    if (!is_any(own))
      return l;
    any = l;
  }
  return any;
}

void cm_id::tell(rdma_cm_event_type what, int status, const private_data* data,
                 std::uint8_t data_field) {
  auto* const e = new cm_event{};
  e->id = this;
  e->event = what;
  e->status = status;
  e->counted_for = this;
  if (data_field != 0) {
    if (data != nullptr)
      e->data = *data;
    e->param.conn.private_data = e->data.bytes.data();
    e->param.conn.private_data_len = data_field;
  }
  e->param.conn.initiator_depth = initiator_depth;
  e->param.conn.responder_resources = responder_resources;
  e->param.conn.retry_count = retry_count;
  e->param.conn.rnr_retry_count = rnr_retry_count;
  e->param.conn.qp_num = peer_qp_num;
  channel_of(channel).events.push(e);
}

void send_request(cm_id& from, const private_data& data) {
  cm_id* const listener = find_listener(from.route.addr.dst_addr);
  if (listener == nullptr)
    return send_request_by_wire(from, data);
  auto made = std::make_unique<cm_id>();
  cm_id& to = *made;
  to.ps = from.ps;
  to.qp_type = from.qp_type;
  to.route.addr.src_storage = from.route.addr.dst_storage;
  to.route.addr.dst_storage = from.route.addr.src_storage;
  to.peer = &from;
  to.peer_qp_num = from.qp_num;
  to.peer_psn = from.psn;
  // One side answers as many READs as the other one may begin.
  to.responder_resources = from.initiator_depth;
  to.initiator_depth = from.responder_resources;
  to.retry_count = from.retry_count;
  to.rnr_retry_count = from.rnr_retry_count;
  from.peer = &to;
  from.state = cm_state::requesting;
  if (take_request(*listener, std::move(made), data) == nullptr) {
    from.peer = nullptr;
    from.state = cm_state::ended;
    from.tell(RDMA_CM_EVENT_REJECTED, reject_consumer, nullptr, reject_data);
  }
}

cm_id* take_request(cm_id& listener, std::unique_ptr<cm_id> made, const private_data& data) {
  if (listener.waiting >= listener.backlog)
    return nullptr;
  cm_id* const to = made.release();
  to->channel = listener.channel;
  to->context = listener.context;
  to->verbs = cm_id::shared_context();
  to->port_num = 1;
  to->state = cm_state::requested;
  ++listener.waiting;
  auto* const e = new cm_event{};
  e->id = to;
  e->listen_id = &listener;
  e->event = RDMA_CM_EVENT_CONNECT_REQUEST;
  e->counted_for = &listener;
  e->data = data;
  e->param.conn.private_data = e->data.bytes.data();
  e->param.conn.private_data_len = request_data;
  e->param.conn.initiator_depth = to->initiator_depth;
  e->param.conn.responder_resources = to->responder_resources;
  e->param.conn.retry_count = to->retry_count;
  e->param.conn.rnr_retry_count = to->rnr_retry_count;
  e->param.conn.qp_num = to->peer_qp_num;
  cm_id::channel_of(listener.channel).events.push(e);
  return to;
}

void send_reply(cm_id& from, const private_data& data) {
  if (from.wire)
    return send_reply_by_wire(from, data);
  cm_id& to = *from.peer;
  from.state = cm_state::replied;
  to.state = cm_state::responded;
  to.peer_qp_num = from.qp_num;
  to.peer_psn = from.psn;
  to.rnr_retry_count = from.rnr_retry_count;
  to.initiator_depth = from.responder_resources;
  to.responder_resources = from.initiator_depth;
  to.tell(RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &data, reply_data);
}

void send_ready(cm_id& from) {
  if (from.wire) {
    from.state = cm_state::connected;
    return from.wire->send_ready();
  }
  cm_id& to = *from.peer;
  from.state = to.state = cm_state::connected;
  to.tell(RDMA_CM_EVENT_ESTABLISHED);
}

void send_reject(cm_id& from, int reason, const private_data& data) {
  cm_id* const to = std::exchange(from.peer, nullptr);
  const bool requested = from.state == cm_state::requested;
  from.state = cm_state::ended;
  if (const auto w = std::exchange(from.wire, nullptr)) {
    if (requested)
      send_reject_by_wire(from, *w, data);
    w->close();
  }
  if (to == nullptr)
    return;
  to->peer = nullptr;
  to->state = cm_state::ended;
  to->tell(RDMA_CM_EVENT_REJECTED, reason, &data, reject_data);
}

void send_disconnect(cm_id& from) {
  cm_id* const to = std::exchange(from.peer, nullptr);
  from.state = cm_state::ended;
  if (const auto w = std::exchange(from.wire, nullptr))
    w->close();
  from.tell(RDMA_CM_EVENT_DISCONNECTED);
  if (to == nullptr)
    return;
  to->peer = nullptr;
  to->state = cm_state::ended;
  to->tell(RDMA_CM_EVENT_DISCONNECTED);
}

void withdraw(cm_id& id) {
  switch (id.state) {
  case cm_state::listening:
    stop_listening(id);
    break;
  case cm_state::requesting:
    send_reject(id, reject_timeout, {});
    break;
  case cm_state::requested:
  case cm_state::responded:
  case cm_state::replied:
    send_reject(id, reject_consumer, {});
    break;
  case cm_state::connected:
    if (const auto w = std::exchange(id.wire, nullptr))
      w->close();
    if (cm_id* const to = std::exchange(id.peer, nullptr)) {
      to->peer = nullptr;
      to->state = cm_state::ended;
      to->tell(RDMA_CM_EVENT_DISCONNECTED);
    }
    break;
  default:
    break;
  }
  id.state = cm_state::ended;
}

} // namespace soft
