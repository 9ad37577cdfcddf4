// SPDX-License-Identifier: BSL-1.0
// The functions of librdmacm.
#include "cm/addresses.hpp"
#include "cm/cm_id.hpp"
#include "device/limits.hpp"
#include "device/queue_pair.hpp"
#include "verbs/next.hpp"
#include "wire/pairing.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

using namespace soft;

namespace soft {
namespace {

int fail(int error) {
  errno = error;
  return -1;
}

constexpr int most_waiting = 1024; // net/rdma_ucm/max_backlog

std::uint32_t random_psn() {
  thread_local std::mt19937 generator{std::random_device{}()};
  return generator() & 0xffffff;
}

cm_channel* make_channel() {
  auto made = std::unique_ptr<cm_channel>(new (std::nothrow) cm_channel{});
  if (!made) {
    errno = ENOMEM;
    return nullptr;
  }
  if (made->events.fd() < 0)
    return nullptr; // errno of eventfd(2)
  made->fd = made->events.fd();
  return made.release();
}

// The depths that the program asked for: 255 stands for the most.
std::uint8_t depth(std::uint8_t asked, std::uint8_t most) {
  return asked == 0xff ? most : std::min(asked, most);
}

bool take(const rdma_conn_param& p, std::uint8_t most, private_data& to) {
  if (p.private_data_len > most)
    return false;
  to.size = p.private_data_len;
  if (to.size != 0)
    std::memcpy(to.bytes.data(), p.private_data, to.size);
  return true;
}

int modify_to(cm_id& id, ibv_qp_state state) {
  ibv_qp_attr a{};
  a.qp_state = state;
  int mask = 0;
  if (rdma_init_qp_attr(&id, &a, &mask) != 0)
    return errno;
  return ibv_modify_qp(id.qp, &a, mask);
}

// As rdma_accept(3) and the library's own part of rdma_connect(3): a queue pair of the id becomes
// ready. It becomes initialised once more, as the peer's rights depend on the depths, which are
// known now.
int make_ready(cm_id& id) {
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    if (const int error = modify_to(id, state))
      return error;
  return 0;
}

void end_qp(cm_id& id) {
  if (id.qp == nullptr)
    return;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(id.qp, &a, IBV_QP_STATE);
}

// A synchronous id waits for the event of what it began.
int finish(cm_id& id) {
  if (!id.synchronous)
    return 0;
  if (id.event != nullptr) {
    rdma_ack_cm_event(id.event);
    id.event = nullptr;
  }
  if (rdma_get_cm_event(id.channel, &id.event) != 0)
    return -1;
  if (id.event->status == 0)
    return 0;
  if (id.event->event == RDMA_CM_EVENT_REJECTED)
    return fail(ECONNREFUSED);
  return fail(id.event->status < 0 ? -id.event->status : id.event->status);
}

// Takes the events of an id that the program has not got.
std::vector<cm_event*> take_events(cm_channel& c, const cm_id& id) {
  std::vector<cm_event*> taken;
  c.events.remove_if([&](const cm_event* e) { return e->counted_for == &id; },
                     [&](cm_event* e) { taken.push_back(e); });
  return taken;
}

// With the events of an id that is destroyed go the ids of its requests.
void drop_events(cm_channel& c, cm_id& id) {
  for (cm_event* const e : take_events(c, id)) {
    if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      cm_id& request = cm_id::of(e->id);
      withdraw(request);
      drop_events(c, request);
      delete &request;
    }
    delete e;
  }
}

} // namespace

ibv_context* cm_id::shared_context() {
  static ibv_context* const opened = make_context();
  return opened;
}

} // namespace soft

SOFT_EXPORT rdma_event_channel* rdma_create_event_channel() { return make_channel(); }
SOFT_EXPORT void rdma_destroy_event_channel(rdma_event_channel* c) { delete &cm_id::channel_of(c); }

SOFT_EXPORT int rdma_create_id(rdma_event_channel* c, rdma_cm_id** id, void* user,
                               rdma_port_space ps) {
  if (ps != RDMA_PS_TCP && ps != RDMA_PS_IB)
    return fail(EOPNOTSUPP);
  auto made = std::unique_ptr<cm_id>(new (std::nothrow) cm_id{});
  if (!made)
    return fail(ENOMEM);
  {
    const engine::lock_guard lock(engine::get());
    if (!prepare_numbers() || cm_id::shared_context() == nullptr)
      return -1;
  }
  made->synchronous = c == nullptr;
  made->channel = c != nullptr ? c : make_channel();
  if (made->channel == nullptr)
    return -1;
  made->context = user;
  made->ps = ps;
  made->qp_type = IBV_QPT_RC;
  made->psn = random_psn();
  *id = made.release();
  return 0;
}

SOFT_EXPORT int rdma_destroy_id(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  if (id.event != nullptr)
    rdma_ack_cm_event(id.event);
  {
    const engine::lock_guard lock(engine::get());
    withdraw(id);
    drop_events(cm_id::channel_of(id.channel), id);
    release_port(id);
  }
  id.events_got.wait();
  if (id.synchronous)
    rdma_destroy_event_channel(id.channel);
  delete &id;
  return 0;
}

SOFT_EXPORT int rdma_set_option(rdma_cm_id* base, int level, int name, void* value,
                                std::size_t bytes) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (level == RDMA_OPTION_ID &&
      (name == RDMA_OPTION_ID_REUSEADDR || name == RDMA_OPTION_ID_AFONLY)) {
    if (bytes != sizeof(int) || id.state != cm_state::idle)
      return fail(EINVAL);
    int set = 0;
    std::memcpy(&set, value, sizeof(set));
    if (name == RDMA_OPTION_ID_REUSEADDR)
      id.reuse_address = set != 0;
    else
      id.only_v6 = set != 0;
    return 0;
  }
  if (level == RDMA_OPTION_ID && (name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT))
    return bytes == 1 ? 0 : fail(EINVAL); // there is no network that would read them
  return fail(ENOSYS);
}

SOFT_EXPORT int rdma_bind_addr(rdma_cm_id* base, sockaddr* address) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (id.state != cm_state::idle)
    return fail(EINVAL);
  if (const int error = bind_port(id, *address))
    return fail(error);
  if (!is_any(id.route.addr.src_addr)) {
    id.verbs = cm_id::shared_context();
    id.port_num = 1;
  }
  id.state = cm_state::bound;
  return 0;
}

SOFT_EXPORT int rdma_resolve_addr(rdma_cm_id* base, sockaddr* from, sockaddr* to, int) {
  cm_id& id = cm_id::of(base);
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::idle && id.state != cm_state::bound)
      return fail(EINVAL);
    if (id.state == cm_state::idle && from != nullptr)
      if (const int error = bind_port(id, *from))
        return fail(error);
    std::memcpy(&id.route.addr.dst_storage, to, size_of(*to));
    int error = 0;
    if (id.port_holder < 0 || is_any(id.route.addr.src_addr))
      error = choose_source(id, *to);
    if (error == 0 && index_of(gid_of(id.route.addr.src_addr)) < 0)
      error = ENODEV;
    if (error != 0) {
      id.tell(RDMA_CM_EVENT_ADDR_ERROR, -error);
    } else {
      id.verbs = cm_id::shared_context();
      id.port_num = 1;
      id.state = cm_state::resolved;
      id.tell(RDMA_CM_EVENT_ADDR_RESOLVED);
    }
  }
  return finish(id);
}

SOFT_EXPORT int rdma_resolve_route(rdma_cm_id* base, int) {
  cm_id& id = cm_id::of(base);
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::resolved)
      return fail(EINVAL);
    id.state = cm_state::routed;
    id.tell(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  return finish(id);
}

SOFT_EXPORT int rdma_listen(rdma_cm_id* base, int backlog) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (id.state == cm_state::idle) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (const int error = bind_port(id, reinterpret_cast<sockaddr&>(any)))
      return fail(error);
  } else if (id.state != cm_state::bound) {
    return fail(EINVAL);
  }
  if (port_is_shared(id))
    return fail(EADDRINUSE);
  id.backlog = backlog <= 0 || backlog > most_waiting ? most_waiting : backlog;
  if (const int error = start_listening(id))
    return fail(error);
  id.state = cm_state::listening;
  return 0;
}

SOFT_EXPORT int rdma_connect(rdma_cm_id* base, rdma_conn_param* p) {
  cm_id& id = cm_id::of(base);
  {
    const engine::lock_guard lock(engine::get());
    private_data data;
    rdma_conn_param none{};
    none.initiator_depth = none.responder_resources = 0xff;
    none.retry_count = none.rnr_retry_count = 7;
    if (p == nullptr)
      p = &none;
    if (id.state != cm_state::routed || !take(*p, request_data, data))
      return fail(EINVAL);
    id.initiator_depth = depth(p->initiator_depth, limits::reads);
    id.responder_resources = depth(p->responder_resources, limits::reads);
    id.retry_count = p->retry_count;
    id.rnr_retry_count = p->rnr_retry_count;
    id.qp_num = id.qp != nullptr ? id.qp->qp_num : p->qp_num;
    send_request(id, data);
  }
  return finish(id);
}

SOFT_EXPORT int rdma_accept(rdma_cm_id* base, rdma_conn_param* p) {
  cm_id& id = cm_id::of(base);
  private_data data;
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::requested)
      return fail(EINVAL);
    if (p != nullptr) {
      if (!take(*p, reply_data, data))
        return fail(EINVAL);
      id.initiator_depth = p->initiator_depth == 0xff ? id.initiator_depth
                                                      : depth(p->initiator_depth, limits::reads);
      id.responder_resources = p->responder_resources == 0xff
                                   ? id.responder_resources
                                   : depth(p->responder_resources, limits::reads);
      id.rnr_retry_count = p->rnr_retry_count;
    }
    id.qp_num = id.qp != nullptr ? id.qp->qp_num : p != nullptr ? p->qp_num : 0;
  }
  if (id.qp != nullptr)
    if (const int error = make_ready(id))
      return fail(error);
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::requested)
      return fail(EINVAL);
    send_reply(id, data);
  }
  return finish(id);
}

SOFT_EXPORT int rdma_establish(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (id.state != cm_state::responded)
    return fail(EINVAL);
  send_ready(id);
  return 0;
}

SOFT_EXPORT int rdma_reject(rdma_cm_id* base, const void* bytes, std::uint8_t size) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (size > reject_data || (id.state != cm_state::requested && id.state != cm_state::responded &&
                             id.state != cm_state::replied))
    return fail(EINVAL);
  private_data data;
  data.size = size;
  if (size != 0)
    std::memcpy(data.bytes.data(), bytes, size);
  send_reject(id, reject_consumer, data);
  return 0;
}
SOFT_EXPORT int rdma_reject_ece(rdma_cm_id* id, const void* bytes, std::uint8_t size) {
  return rdma_reject(id, bytes, size);
}

SOFT_EXPORT int rdma_notify(rdma_cm_id* base, ibv_event_type what) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (what != IBV_EVENT_COMM_EST)
    return 0;
  if (id.state == cm_state::connected)
    return fail(EISCONN);
  if (id.state != cm_state::replied)
    return fail(EINVAL);
  id.state = cm_state::connected;
  id.tell(RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}

SOFT_EXPORT int rdma_disconnect(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  end_qp(id);
  {
    const engine::lock_guard lock(engine::get());
    if (id.state == cm_state::ended)
      return 0; // the peer was first, which is told already
    if (id.state != cm_state::connected && id.state != cm_state::replied &&
        id.state != cm_state::responded)
      return fail(EINVAL);
    send_disconnect(id);
  }
  return finish(id);
}

SOFT_EXPORT int rdma_init_qp_attr(rdma_cm_id* base, ibv_qp_attr* a, int* mask) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  const bool open = id.state == cm_state::requested || id.state == cm_state::replied ||
                    id.state == cm_state::responded || id.state == cm_state::connected;
  const ibv_qp_state state = a->qp_state;
  *a = {};
  a->qp_state = state;
  switch (state) {
  case IBV_QPS_INIT:
    if (id.state == cm_state::ended || id.state == cm_state::idle)
      return fail(EINVAL);
    a->port_num = 1;
    a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (id.responder_resources != 0)
      a->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    return 0;
  case IBV_QPS_RTR:
    if (!open)
      return fail(EINVAL);
    a->ah_attr.is_global = 1;
    a->ah_attr.port_num = 1;
    a->ah_attr.grh.dgid = gid_of(id.route.addr.dst_addr);
    a->ah_attr.grh.sgid_index =
        static_cast<std::uint8_t>(std::max(index_of(gid_of(id.route.addr.src_addr)), 0));
    a->ah_attr.grh.hop_limit = 64;
    a->path_mtu = IBV_MTU_4096;
    a->dest_qp_num = id.peer_qp_num;
    a->rq_psn = id.peer_psn;
    a->max_dest_rd_atomic = id.responder_resources;
    *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return 0;
  case IBV_QPS_RTS:
    if (!open)
      return fail(EINVAL);
    a->timeout = 14;
    a->retry_cnt = id.retry_count;
    a->rnr_retry = id.rnr_retry_count;
    a->sq_psn = id.psn;
    a->max_rd_atomic = id.initiator_depth;
    *mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC;
    return 0;
  default:
    return fail(EINVAL);
  }
}

SOFT_EXPORT int rdma_get_cm_event(rdma_event_channel* c, rdma_cm_event** to) {
  cm_event* e = nullptr;
  for (;;) {
    if (const int error = cm_id::channel_of(c).events.pop(
            e, [](cm_event* taken) { taken->counted_for->events_got.got(); }))
      return fail(error);
    if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      const engine::lock_guard lock(engine::get());
      cm_id& id = cm_id::of(e->id);
      id.psn = random_psn();
      --e->counted_for->waiting;
      if (e->counted_for->synchronous) {
        id.synchronous = true;
        id.channel = make_channel();
        for (cm_event* const later : take_events(cm_id::channel_of(c), id))
          cm_id::channel_of(id.channel).events.push(later);
      }
    } else if (e->event == RDMA_CM_EVENT_CONNECT_RESPONSE && e->id->qp != nullptr) {
      // The library's part: the queue pair becomes ready, and the program sees a connection.
      cm_id& id = cm_id::of(e->id);
      int error = make_ready(id);
      if (error == 0 && rdma_establish(&id) != 0)
        error = errno;
      e->event = error == 0 ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_ERROR;
      e->status = -error;
    }
    *to = e;
    return 0;
  }
}

SOFT_EXPORT int rdma_ack_cm_event(rdma_cm_event* base) {
  auto* const e = static_cast<cm_event*>(base);
  acknowledged_events& got = e->counted_for->events_got;
  delete e;
  got.acknowledged(1);
  return 0;
}

SOFT_EXPORT int rdma_migrate_id(rdma_cm_id* base, rdma_event_channel* to) {
  cm_id& id = cm_id::of(base);
  const bool synchronous = to == nullptr;
  if (synchronous && (to = make_channel()) == nullptr)
    return -1;
  if (id.event != nullptr) {
    rdma_ack_cm_event(id.event);
    id.event = nullptr;
  }
  rdma_event_channel* old = nullptr;
  {
    const engine::lock_guard lock(engine::get());
    old = std::exchange(id.channel, to);
    for (cm_event* const e : take_events(cm_id::channel_of(old), id)) {
      if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST)
        e->id->channel = to;
      cm_id::channel_of(to).events.push(e);
    }
  }
  id.events_got.wait();
  if (std::exchange(id.synchronous, synchronous))
    rdma_destroy_event_channel(old);
  return 0;
}

SOFT_EXPORT int rdma_get_request(rdma_cm_id* listener, rdma_cm_id** id) {
  cm_id& l = cm_id::of(listener);
  if (!l.synchronous)
    return fail(EINVAL);
  if (finish(l) != 0)
    return -1;
  if (l.event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
    return fail(EINVAL);
  rdma_cm_id* const made = l.event->id;
  made->event = l.event;
  l.event = nullptr;
  if (l.for_requests) {
    ibv_qp_init_attr a = *l.for_requests;
    if (rdma_create_qp(made, l.pd_for_requests, &a) != 0) {
      const int error = errno;
      rdma_reject(made, nullptr, 0);
      rdma_destroy_id(made);
      return fail(error);
    }
  }
  *id = made;
  return 0;
}

SOFT_EXPORT __be16 rdma_get_src_port(rdma_cm_id* id) { return port_of(id->route.addr.src_addr); }
SOFT_EXPORT __be16 rdma_get_dst_port(rdma_cm_id* id) { return port_of(id->route.addr.dst_addr); }

SOFT_EXPORT ibv_context** rdma_get_devices(int* count) {
  const engine::lock_guard lock(engine::get());
  prepare_numbers();
  auto* const list = static_cast<ibv_context**>(std::calloc(2, sizeof(ibv_context*)));
  if (list == nullptr)
    return nullptr;
  list[0] = cm_id::shared_context();
  if (count != nullptr)
    *count = 1;
  return list;
}
SOFT_EXPORT void rdma_free_devices(ibv_context** list) { std::free(list); }

// The queues that the program does not give are made for the id: rdma_create_qp(3).
SOFT_EXPORT int rdma_create_qp(rdma_cm_id* base, ibv_pd* pd, ibv_qp_init_attr* a) {
  cm_id& id = cm_id::of(base);
  if (id.verbs == nullptr || id.qp != nullptr)
    return fail(EINVAL);
  if (pd == nullptr && (pd = id.own_pd = ibv_alloc_pd(id.verbs)) == nullptr)
    return -1;
  const auto queue = [&](ibv_cq*& given, ibv_cq*& made, ibv_comp_channel*& events,
                         std::uint32_t entries) {
    if (given != nullptr)
      return true;
    id.own_queues = true;
    events = ibv_create_comp_channel(id.verbs);
    made = events == nullptr
               ? nullptr
               : ibv_create_cq(id.verbs, static_cast<int>(std::max(entries, 1u)), &id, events, 0);
    given = made;
    return made != nullptr;
  };
  if (queue(a->send_cq, id.send_cq, id.send_cq_channel, a->cap.max_send_wr) &&
      queue(a->recv_cq, id.recv_cq, id.recv_cq_channel, a->cap.max_recv_wr))
    id.qp = ibv_create_qp(pd, a);
  id.pd = pd;
  if (id.qp == nullptr || modify_to(id, IBV_QPS_INIT) != 0) {
    const int error = errno;
    rdma_destroy_qp(&id);
    return fail(error);
  }
  return 0;
}
SOFT_EXPORT void rdma_destroy_qp(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  if (id.qp != nullptr)
    ibv_destroy_qp(std::exchange(id.qp, nullptr));
  if (std::exchange(id.own_queues, false)) {
    for (ibv_cq** const q : {&id.send_cq, &id.recv_cq})
      if (*q != nullptr)
        ibv_destroy_cq(std::exchange(*q, nullptr));
    for (ibv_comp_channel** const c : {&id.send_cq_channel, &id.recv_cq_channel})
      if (*c != nullptr)
        ibv_destroy_comp_channel(std::exchange(*c, nullptr));
  }
  if (id.own_pd != nullptr)
    ibv_dealloc_pd(std::exchange(id.own_pd, nullptr));
}
SOFT_EXPORT int rdma_set_local_ece(rdma_cm_id*, ibv_ece*) { return fail(EOPNOTSUPP); }
SOFT_EXPORT int rdma_get_remote_ece(rdma_cm_id*, ibv_ece* e) {
  *e = {};
  return 0;
}
SOFT_EXPORT int rdma_join_multicast(rdma_cm_id*, sockaddr*, void*) { return fail(EOPNOTSUPP); }
SOFT_EXPORT int rdma_join_multicast_ex(rdma_cm_id*, rdma_cm_join_mc_attr_ex*, void*) {
  return fail(EOPNOTSUPP);
}
SOFT_EXPORT int rdma_leave_multicast(rdma_cm_id*, sockaddr*) { return fail(EOPNOTSUPP); }
