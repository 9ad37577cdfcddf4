// SPDX-License-Identifier: BSL-1.0
// The functions of librdmacm that begin, answer and end a connection.
#include "cm/functions.hpp"

#include "device/faults.hpp"
#include "device/in_force.hpp"
#include "verbs/next.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

using namespace soft;

namespace {

constexpr std::uint8_t largest = 0xff; // RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH

// Whether the device can do what is asked for (rdma_connect(3), rdma_accept(3)).
bool is_valid(const cm_id& id, const rdma_conn_param* p) {
  if (id.ps != RDMA_PS_TCP)
    return true;
  const auto fits = [](std::uint8_t depth) {
    return depth == largest || depth <= most_reads();
  };
  return p == nullptr ? id.qp != nullptr : fits(p->responder_resources) && fits(p->initiator_depth);
}

std::uint8_t depth(std::uint8_t asked, std::uint8_t most) {
  return asked == largest ? most : asked;
}

// The field of a request has three bits (cma_connect_ib and cma_accept_ib of the kernel).
constexpr std::uint8_t most_retries = 7;
std::uint8_t retries(std::uint8_t asked) { return std::min(asked, most_retries); }

bool take(const rdma_conn_param& p, std::uint8_t most, private_data& to) {
  if (p.private_data_len > most)
    return false;
  to.size = p.private_data_len;
  if (to.size != 0)
    std::memcpy(to.bytes.data(), p.private_data, to.size);
  return true;
}

} // namespace

SOFT_EXPORT int rdma_connect(rdma_cm_id* base, rdma_conn_param* p) {
  cm_id& id = cm_id::of(base);
  const int rejection = id.is_datagram() ? 0 : refuse_connecting();
  {
    const engine::lock_guard lock(engine::get());
    private_data data;
    rdma_conn_param none{};
    none.initiator_depth = none.responder_resources = largest;
    none.retry_count = none.rnr_retry_count = most_retries;
    if (!is_valid(id, p))
      return fail(EINVAL);
    if (p == nullptr)
      p = &none;
    if (id.state != cm_state::routed ||
        !take(*p, id.is_datagram() ? resolution_request_data : request_data, data))
      return fail(id.wrong_state());
    id.initiator_depth = depth(p->initiator_depth, most_reads());
    id.responder_resources = depth(p->responder_resources, most_reads());
    id.retry_count = retries(p->retry_count);
    id.sent_rnr_retry_count = retries(p->rnr_retry_count);
    id.qp_num = id.qp != nullptr ? id.qp->qp_num : p->qp_num;
    send_request(id, data, rejection);
  }
  return finish(id);
}

SOFT_EXPORT int rdma_accept(rdma_cm_id* base, rdma_conn_param* p) {
  cm_id& id = cm_id::of(base);
  private_data data;
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::requested || !is_valid(id, p))
      return fail(id.wrong_state());
    if (p != nullptr) {
      if (!take(*p, id.is_datagram() ? resolution_data : reply_data, data))
        return fail(EINVAL);
      id.initiator_depth = depth(p->initiator_depth, id.initiator_depth);
      id.responder_resources = depth(p->responder_resources, id.responder_resources);
    }
    id.sent_rnr_retry_count = p != nullptr ? retries(p->rnr_retry_count) : most_retries;
    id.qp_num = id.qp != nullptr ? id.qp->qp_num : p != nullptr ? p->qp_num : 0;
  }
  if (id.qp != nullptr && !id.is_datagram())
    if (const int error = make_ready(id))
      return fail(error);
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::requested)
      return fail(id.wrong_state());
    send_reply(id, data);
    if (id.is_datagram())
      return 0; // no event follows
  }
  return finish(id);
}

SOFT_EXPORT int rdma_establish(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (id.state != cm_state::responded)
    return fail(id.wrong_state());
  send_ready(id);
  return 0;
}

namespace {

int reject(rdma_cm_id* base, int reason, const void* bytes, std::uint8_t size) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (size > (id.is_datagram() ? resolution_data : reject_data) ||
      (id.is_datagram() && id.state != cm_state::requested) ||
      (id.state != cm_state::requested && id.state != cm_state::responded &&
       id.state != cm_state::replied))
    return fail(id.wrong_state());
  private_data data;
  data.size = size;
  if (size != 0)
    std::memcpy(data.bytes.data(), bytes, size);
  send_reject(id, reason, data);
  return 0;
}

} // namespace

SOFT_EXPORT int rdma_reject(rdma_cm_id* id, const void* bytes, std::uint8_t size) {
  return reject(id, reject_consumer, bytes, size);
}
SOFT_EXPORT int rdma_reject_ece(rdma_cm_id* id, const void* bytes, std::uint8_t size) {
  return reject(id, reject_options, bytes, size);
}

SOFT_EXPORT int rdma_notify(rdma_cm_id* base, ibv_event_type what) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (what != IBV_EVENT_COMM_EST)
    return 0;
  if (id.state == cm_state::connected)
    return fail(EISCONN);
  if (id.state != cm_state::replied)
    return fail(id.wrong_state());
  id.state = cm_state::connected;
  id.tell(RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}

SOFT_EXPORT int rdma_disconnect(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  if (id.is_datagram())
    return fail(EINVAL); // there is no connection
  const auto has_ended = [&] {
    const engine::lock_guard lock(engine::get());
    return id.state == cm_state::ended;
  };
  const bool had_ended = has_ended();
  end_queue_pair(id);
  if (had_ended)
    return 0; // the program has that event
  {
    const engine::lock_guard lock(engine::get());
    if (id.state == cm_state::connected || id.state == cm_state::replied ||
        id.state == cm_state::responded)
      send_disconnect(id);
    else if (id.state != cm_state::ended) // by the queue pair or the peer: that event comes
      return fail(id.wrong_state());
  }
  return finish(id);
}
