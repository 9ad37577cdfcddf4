// SPDX-License-Identifier: BSL-1.0
// The messages of the connection manager between two ids of one process. States and events are
// those of the kernel's IB CM.
#include "cm/addresses.hpp"
#include "cm/cm_id.hpp"
#include "cm/resolution.hpp"
#include "device/in_force.hpp"
#include "device/queue_pair.hpp"
#include "engine/of_process.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <utility>
#include <vector>

namespace soft {
namespace {

struct listening_ids {
  std::vector<cm_id*> all;
};
std::vector<cm_id*>& listeners() { return of_process<listening_ids>().all; }

cm_event* make_event(cm_id& id, rdma_cm_event_type what, const private_data* data,
                     std::uint8_t data_field) {
  auto* const e = new cm_event{};
  e->id = &id;
  e->event = what;
  e->counted_for = &id;
  if (data != nullptr)
    e->data = *data;
  const void* const field = data_field != 0 ? e->data.bytes.data() : nullptr;
  if (id.is_datagram()) {
    e->param.ud.private_data = field;
    e->param.ud.private_data_len = data_field;
    if (what == RDMA_CM_EVENT_ESTABLISHED) {
      fill_route(id, e->param.ud.ah_attr);
      e->param.ud.qp_num = id.peer_qp_num;
      e->param.ud.qkey = id.q_key;
    }
    return e;
  }
  e->param.conn.private_data = field;
  e->param.conn.private_data_len =
      data_field == 0 ? data_field : std::max(data_field, e->data.size);
  e->param.conn.initiator_depth = id.initiator_depth;
  e->param.conn.responder_resources = id.responder_resources;
  e->param.conn.retry_count = id.retry_count;
  e->param.conn.rnr_retry_count = id.rnr_retry_count;
  e->param.conn.qp_num = id.peer_qp_num;
  return e;
}

// The reason for which the settings reject a request, or 0. `reason`: that of a fault.
int set_rejection(int reason) {
  static unsigned stale = 0;
  static const settings* of = nullptr;
  if (std::exchange(of, &current()) != &current())
    stale = 0;
  if (reason != 0 || stale == habits().stale_rejects)
    return reason;
  ++stale;
  return reject_stale;
}

// Ends the connection of an id with another one of this process. Returns that one, or nullptr.
cm_id* part(cm_id& id) {
  cm_id* const other = std::exchange(id.peer, nullptr);
  if (other != nullptr) {
    other->peer = nullptr;
    other->state = cm_state::ended;
  }
  id.state = cm_state::ended;
  return other;
}

} // namespace

int start_listening(cm_id& id) {
  if (id.is_datagram()) {
    auto made = std::make_unique<cm_inquiry_listener>(id);
    if (const int error = made->begin())
      return error;
    id.inquiries = std::move(made);
    return 0;
  }
  if (const int error = listen_to_others(id))
    return error;
  listeners().push_back(&id);
  return 0;
}

void stop_listening(cm_id& id) {
  auto& all = listeners();
  all.erase(std::remove(all.begin(), all.end(), &id), all.end());
  ignore_others(id);
  id.inquiries.reset();
}

int waiting_requests() {
  int all = 0;
  for (const cm_id* const l : listeners())
    all += l->waiting;
  return all;
}

// An exact address comes before any address.
cm_id* find_listener(sockaddr& address) {
  cm_id* any = nullptr;
  for (cm_id* const l : listeners()) {
    if (!serves(*l, address))
      continue;
    if (!is_any(l->route.addr.src_addr))
      return l;
    any = l;
  }
  return any;
}

void cm_id::tell(rdma_cm_event_type what, int status, const private_data* data,
                 std::uint8_t data_field) {
  if (is_ending)
    return;
  cm_event* const e = make_event(*this, what, data, data_field);
  e->status = status;
  channel_of(channel).events.push(e);
}

void send_request(cm_id& from, const private_data& data, int rejection) {
  if (from.is_datagram()) {
    from.state = cm_state::requesting;
    from.inquiry = std::make_unique<cm_inquiry>(from);
    return from.inquiry->begin(data);
  }
  if (const int reason = set_rejection(rejection)) {
    from.state = cm_state::ended;
    return from.tell(RDMA_CM_EVENT_REJECTED, reason, nullptr, reject_data);
  }
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
  to.rnr_retry_count = from.sent_rnr_retry_count;
  to.traffic_class = from.traffic_class;
  to.peer_ece = from.own_ece;
  from.peer = &to;
  from.state = cm_state::requesting;
  if (take_request(*listener, std::move(made), data) == nullptr) {
    from.peer = nullptr;
    from.state = cm_state::ended;
    return from.tell(RDMA_CM_EVENT_REJECTED, reject_consumer, nullptr, reject_data);
  }
  from.expect_answer();
}

cm_id* take_request(cm_id& listener, std::unique_ptr<cm_id> made, const private_data& data) {
  if (listener.waiting >= listener.backlog || made->has_lost_device())
    return nullptr;
  cm_id* const to = made.release();
  to->channel = listener.channel;
  to->context = listener.context;
  to->use_device();
  if (to->fill_path() != 0) {
    to->leave_device();
    delete to;
    return nullptr;
  }
  to->state = cm_state::requested;
  ++listener.waiting;
  cm_event* const e = make_event(*to, RDMA_CM_EVENT_CONNECT_REQUEST, &data,
                                 to->is_datagram() ? resolution_request_data : request_data);
  e->listen_id = e->counted_for = &listener;
  cm_id::channel_of(listener.channel).events.push(e);
  return to;
}

void send_reply(cm_id& from, const private_data& data) {
  if (from.is_datagram()) {
    from.state = cm_state::connected;
    return from.answer->send(roce::resolution_status::success, data);
  }
  if (from.wire)
    return send_reply_by_wire(from, data);
  cm_id& to = *from.peer;
  from.state = cm_state::replied;
  to.state = cm_state::responded;
  to.peer_qp_num = from.qp_num;
  to.peer_psn = from.psn;
  to.rnr_retry_count = from.sent_rnr_retry_count;
  to.initiator_depth = from.responder_resources;
  to.responder_resources = from.initiator_depth;
  to.peer_ece = {from.peer_ece.vendor_id, from.own_ece.options, 0};
  to.tell(RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &data, reply_data);
  from.expect_answer();
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
  const bool requested = from.state == cm_state::requested;
  from.inquiry.reset();
  if (from.answer && requested)
    from.answer->send(roce::resolution_status::rejected, data);
  cm_id* const to = part(from);
  if (const auto w = std::exchange(from.wire, nullptr)) {
    if (requested)
      send_reject_by_wire(from, *w, data);
    w->close();
  }
  if (to != nullptr)
    to->tell(RDMA_CM_EVENT_REJECTED, reason, &data, reject_data);
}

void cm_id::expect_answer() { engine::get().schedule_at(*this, clock::now() + current().answer); }

// Source: IB_CM_REQ_ERROR and IB_CM_REP_ERROR in cma_ib_handler of drivers/infiniband/core/cma.c
void cm_id::run() {
  if (state != cm_state::requesting && state != cm_state::replied)
    return; // the peer has answered
  send_reject(*this, reject_timeout, {});
  tell(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

namespace {

// Whether the link to the peer carries nothing, or either side's device was removed.
bool is_silent(const cm_id& id) {
  const auto silent = [](std::uint32_t number) {
    const queue_pair* const qp = queue_pair::find(number);
    return qp != nullptr && qp->is_silent();
  };
  return silent(id.qp_num) || silent(id.peer_qp_num);
}

// If the message is lost, the peer stays connected and gets no answer any more.
void disconnect_peer(cm_id& from) {
  const bool is_lost =
      from.peer != nullptr && from.peer->state == cm_state::connected && is_silent(from);
  cm_id* const to = part(from);
  if (const auto w = std::exchange(from.wire, nullptr))
    w->close();
  if (to == nullptr)
    return;
  if (is_lost)
    to->state = cm_state::connected;
  else
    to->tell(RDMA_CM_EVENT_DISCONNECTED);
}

} // namespace

void send_disconnect(cm_id& from) {
  disconnect_peer(from);
  from.tell(RDMA_CM_EVENT_DISCONNECTED);
}

void withdraw(cm_id& id) {
  engine::get().remove(id);
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
    if (!id.is_datagram())
      disconnect_peer(id);
    break;
  case cm_state::removed:
    if (const auto w = std::exchange(id.wire, nullptr))
      w->close();
    break;
  default:
    break;
  }
  id.answer.reset();
  id.state = cm_state::ended;
}

// The ids of the device get the event one after another, and the kernel destroys its part of each.
// A request that the program has not accepted gets none. A listener to all addresses has no device.
// Source: cma_process_remove in drivers/infiniband/core/cma.c, ucma_event_handler in ucma.c
void cm_id::on_removal() {
  if (verbs == nullptr)
    return;
  const bool has_owner = state != cm_state::requested;
  if (peer != nullptr && peer->has_lost_device())
    std::exchange(peer, nullptr)->peer = nullptr; // the peer has its own event
  if (state != cm_state::connected || !wire)
    withdraw(*this);
  inquiry.reset();
  state = cm_state::removed;
  if (has_owner)
    tell(RDMA_CM_EVENT_DEVICE_REMOVAL);
}

} // namespace soft
