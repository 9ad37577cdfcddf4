// SPDX-License-Identifier: BSL-1.0
// The functions of librdmacm for ids, their addresses and their events.
#include "cm/functions.hpp"

#include "cm/addresses.hpp"
#include "device/in_force.hpp"
#include "verbs/next.hpp"
#include "wire/pairing.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

using namespace soft;

namespace soft {
namespace {

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

// Takes the events of an id that the program has not got. Those of a request are behind the request
// itself, and go with it: another thread that reads events must not find one alone.
std::vector<cm_event*> take_events(cm_channel& c, const cm_id& id) {
  std::vector<cm_event*> taken;
  std::unordered_set<const cm_id*> ids{&id};
  c.events.remove_if([&](const cm_event* e) { return ids.contains(e->counted_for); },
                     [&](cm_event* e) {
                       taken.push_back(e);
                       if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST)
                         ids.insert(&cm_id::of(e->id));
                     });
  return taken;
}

// Gives the id another channel, and this one the events that the program has not got.
void move_events(cm_id& id, rdma_event_channel* to) {
  rdma_event_channel* const old = std::exchange(id.channel, to);
  for (cm_event* const e : take_events(cm_id::channel_of(old), id)) {
    if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST)
      e->id->channel = to;
    cm_id::channel_of(to).events.push(e);
  }
}

void drop_events(cm_channel& c, cm_id& id, std::vector<ibv_context*>& left);

// Ends a request that the program does not get. A context that no id uses any more comes into
// `left`.
void destroy_request(cm_id& request, std::vector<ibv_context*>& left) {
  withdraw(request);
  drop_events(cm_id::channel_of(request.channel), request, left);
  if (ibv_context* const removed = request.leave_device())
    left.push_back(removed);
  delete &request;
}

// Drops the events of an id that is destroyed, and destroys the ids of requests that were not
// taken.
void drop_events(cm_channel& c, cm_id& id, std::vector<ibv_context*>& left) {
  for (cm_event* const e : take_events(c, id)) {
    if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST)
      destroy_request(cm_id::of(e->id), left);
    delete e;
  }
}

// The library's part when an event is taken. False: the program does not get the event.
bool take_part(cm_event& e) {
  cm_id& id = cm_id::of(e.id);
  switch (e.event) {
  case RDMA_CM_EVENT_CONNECT_REQUEST: {
    const bool has_domain = id.share_domain() == 0;
    std::vector<ibv_context*> left;
    {
      const engine::lock_guard lock(engine::get());
      --e.counted_for->waiting;
      if (!has_domain) {
        destroy_request(id, left);
      } else {
        id.psn = random_psn();
        if (rdma_event_channel* const own = e.counted_for->synchronous ? make_channel() : nullptr) {
          id.synchronous = true;
          move_events(id, own);
        } // else, if the program has no descriptor left, it gets the id's events with the
          // listener's
      }
    }
    for (ibv_context* const c : left)
      ibv_close_device(c);
    return has_domain;
  }
  case RDMA_CM_EVENT_CONNECT_RESPONSE: {
    if (id.qp == nullptr)
      return true;
    // The queue pair becomes ready, and the program sees a connection.
    int error = make_ready(id);
    if (error == 0 && rdma_establish(&id) != 0)
      error = errno;
    e.event = error == 0 ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_ERROR;
    e.status = -error;
    if (error != 0)
      end_queue_pair(id);
    return true;
  }
  case RDMA_CM_EVENT_REJECTED:
    end_queue_pair(id);
    return true;
  default:
    return true;
  }
}

} // namespace

int finish(cm_id& id) {
  if (!id.synchronous)
    return 0;
  if (id.event != nullptr) {
    rdma_ack_cm_event(id.event);
    id.event = nullptr;
  }
  id.waits = 1;
  if (rdma_get_cm_event(id.channel, &id.event) != 0)
    return -1;
  id.waits = 0;
  if (id.event->status == 0)
    return 0;
  if (id.event->event == RDMA_CM_EVENT_REJECTED)
    return fail(ECONNREFUSED);
  return fail(id.event->status < 0 ? -id.event->status : id.event->status);
}

} // namespace soft

SOFT_EXPORT rdma_event_channel* rdma_create_event_channel() { return make_channel(); }
SOFT_EXPORT void rdma_destroy_event_channel(rdma_event_channel* c) { delete &cm_id::channel_of(c); }

SOFT_EXPORT int rdma_create_id(rdma_event_channel* c, rdma_cm_id** id, void* user,
                               rdma_port_space ps) {
  if (ps != RDMA_PS_TCP && ps != RDMA_PS_IB && ps != RDMA_PS_UDP)
    return fail(EOPNOTSUPP);
  auto made = std::unique_ptr<cm_id>(new (std::nothrow) cm_id{});
  if (!made)
    return fail(ENOMEM);
  if (cm_id::open_context() == nullptr)
    return -1;
  {
    const engine::lock_guard lock(engine::get());
    if (!prepare_numbers())
      return -1;
  }
  made->synchronous = c == nullptr;
  made->channel = c != nullptr ? c : make_channel();
  if (made->channel == nullptr)
    return -1;
  made->context = user;
  made->ps = ps;
  made->qp_type = ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
  made->psn = random_psn();
  *id = made.release();
  return 0;
}

SOFT_EXPORT int rdma_destroy_id(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  if (id.event != nullptr)
    rdma_ack_cm_event(id.event);
  std::vector<ibv_context*> left;
  {
    const engine::lock_guard lock(engine::get());
    withdraw(id);
    id.is_ending = true;
    drop_events(cm_id::channel_of(id.channel), id, left);
    release_port(id);
  }
  id.events_got.wait();
  if (id.synchronous)
    rdma_destroy_event_channel(id.channel);
  id.leave_domain();
  {
    const engine::lock_guard lock(engine::get());
    if (ibv_context* const removed = id.leave_device())
      left.push_back(removed);
  }
  delete &id;
  for (ibv_context* const c : left)
    ibv_close_device(c);
  return 0;
}

// The states are those of rdma_set_reuseaddr and rdma_set_afonly in drivers/infiniband/core/cma.c.
SOFT_EXPORT int rdma_set_option(rdma_cm_id* base, int level, int name, void* value,
                                std::size_t bytes) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (id.state == cm_state::removed)
    return fail(ENXIO);
  if (level == RDMA_OPTION_ID &&
      (name == RDMA_OPTION_ID_REUSEADDR || name == RDMA_OPTION_ID_AFONLY)) {
    if (bytes != sizeof(int))
      return fail(EINVAL);
    int set = 0;
    std::memcpy(&set, value, sizeof(set));
    const bool is_in_time =
        name == RDMA_OPTION_ID_AFONLY
            ? id.state == cm_state::idle || id.state == cm_state::bound
            : id.state == cm_state::idle || (set != 0 && id.state != cm_state::listening);
    if (!is_in_time)
      return fail(EINVAL);
    if (name == RDMA_OPTION_ID_AFONLY) {
      id.only_v6 = set != 0;
      return 0;
    }
    id.reuse_address = set != 0;
    if (id.port_holder >= 0)
      set_sharing(id.port_holder, id);
    return 0;
  }
  if (level == RDMA_OPTION_ID &&
      (name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT)) {
    if (bytes != 1)
      return fail(EINVAL);
    if (name == RDMA_OPTION_ID_TOS)
      id.tos = *static_cast<const std::uint8_t*>(value);
    return 0;
  }
  return fail(ENOSYS);
}

SOFT_EXPORT int rdma_bind_addr(rdma_cm_id* base, sockaddr* address) {
  cm_id& id = cm_id::of(base);
  if (const int error = id.share_domain())
    return fail(error);
  const engine::lock_guard lock(engine::get());
  if (id.state != cm_state::idle)
    return fail(id.wrong_state());
  if (const int error = bind_port(id, *address))
    return fail(error);
  if (!is_any(id.route.addr.src_addr)) {
    if (id.has_lost_device()) {
      release_port(id);
      return fail(ENODEV);
    }
    id.use_device();
  }
  id.state = cm_state::bound;
  return 0;
}

// As in the kernel, an id without an address is bound first and stays so. A missing route is an
// error of the call. A device that does not have the address is one of the event.
// Source: rdma_resolve_addr and addr_handler in drivers/infiniband/core/cma.c, rdma_resolve_ip in
// addr.c
SOFT_EXPORT int rdma_resolve_addr(rdma_cm_id* base, sockaddr* from, sockaddr* to, int) {
  cm_id& id = cm_id::of(base);
  int refused = id.share_domain();
  {
    const engine::lock_guard lock(engine::get());
    if (id.state != cm_state::idle && id.state != cm_state::bound)
      return fail(id.wrong_state());
    if (id.state == cm_state::idle) {
      sockaddr_storage any{};
      any.ss_family = to->sa_family;
      const bool is_given = from != nullptr && from->sa_family != AF_UNSPEC;
      if (const int error = bind_port(id, is_given ? *from : reinterpret_cast<sockaddr&>(any)))
        return fail(error);
      id.state = cm_state::bound;
    }
    if (id.route.addr.src_addr.sa_family != to->sa_family)
      return fail(EINVAL);
    sockaddr_storage source = id.route.addr.src_storage;
    auto& own = reinterpret_cast<sockaddr&>(source);
    if (const int error = find_route(own, *to))
      return fail(error);
    std::memcpy(&id.route.addr.dst_storage, to, size_of(*to));
    if (refused == 0 && (id.has_lost_device() || index_of(gid_of(own)) < 0))
      refused = ENODEV;
    if (refused != 0) {
      id.tell(RDMA_CM_EVENT_ADDR_ERROR, -refused);
    } else {
      id.route.addr.src_storage = source;
      id.use_device();
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
      return fail(id.wrong_state());
    id.traffic_class = id.tos.value_or(current().tos);
    if (const int error = id.fill_path()) {
      id.tell(RDMA_CM_EVENT_ROUTE_ERROR, -error);
    } else {
      id.state = cm_state::routed;
      id.tell(RDMA_CM_EVENT_ROUTE_RESOLVED);
    }
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
    return fail(id.wrong_state());
  }
  if (const int error = check_port(id, true))
    return fail(error);
  id.backlog = backlog <= 0 || backlog > most_waiting ? most_waiting : backlog;
  if (const int error = start_listening(id))
    return fail(error);
  id.state = cm_state::listening;
  return 0;
}

SOFT_EXPORT int rdma_get_cm_event(rdma_event_channel* c, rdma_cm_event** to) {
  cm_event* e = nullptr;
  for (;;) {
    if (const int error = cm_id::channel_of(c).events.pop(
            e, [](cm_event* taken) { taken->counted_for->events_got.got(); }))
      return fail(error);
    if (!take_part(*e)) {
      rdma_ack_cm_event(e);
      continue;
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
  if (synchronous)
    to = make_channel();
  if (to == nullptr)
    return -1;
  if (id.event != nullptr) {
    rdma_ack_cm_event(id.event);
    id.event = nullptr;
  }
  rdma_event_channel* const old = id.channel;
  {
    const engine::lock_guard lock(engine::get());
    if (id.state == cm_state::removed) {
      if (synchronous)
        rdma_destroy_event_channel(to);
      return fail(ENXIO);
    }
    move_events(id, to);
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
  if (count != nullptr)
    *count = 0;
  ibv_context* const context = cm_id::open_context();
  if (context == nullptr)
    return nullptr; // errno of ibv_open_device(3)
  auto* const list = static_cast<ibv_context**>(std::calloc(2, sizeof(ibv_context*)));
  if (list == nullptr)
    return nullptr;
  list[0] = context;
  {
    const engine::lock_guard lock(engine::get());
    device_context::of(context).is_given = true;
  }
  if (count != nullptr)
    *count = 1;
  return list;
}
SOFT_EXPORT void rdma_free_devices(ibv_context** list) { std::free(static_cast<void*>(list)); }

SOFT_EXPORT int rdma_join_multicast(rdma_cm_id*, sockaddr*, void*) { return fail(EOPNOTSUPP); }
SOFT_EXPORT int rdma_join_multicast_ex(rdma_cm_id*, rdma_cm_join_mc_attr_ex*, void*) {
  return fail(EOPNOTSUPP);
}
SOFT_EXPORT int rdma_leave_multicast(rdma_cm_id*, sockaddr*) { return fail(EOPNOTSUPP); }
