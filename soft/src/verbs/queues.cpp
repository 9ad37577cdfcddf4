// SPDX-License-Identifier: BSL-1.0
// Completion channels, completion queues, shared receive queues and asynchronous events.
#include "asio_rdma_soft.h"
#include "device/completion_queue.hpp"
#include "device/faults.hpp"
#include "device/limits.hpp"
#include "device/queue_pair.hpp"
#include "device/receive_queue.hpp"
#include "verbs/functions.hpp"
#include "verbs/next.hpp"

#include <cerrno>
#include <memory>
#include <new>

using namespace soft;

SOFT_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* c) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_create_comp_channel)(c);
  if (const int error = refuse_removed(c)) {
    errno = error;
    return nullptr;
  }
  auto made = std::unique_ptr<channel>(new (std::nothrow) channel{});
  if (!made) {
    errno = ENOMEM;
    return nullptr;
  }
  if (made->events.fd() < 0)
    return nullptr; // errno of eventfd(2)
  made->context = c;
  made->fd = made->events.fd();
  made->refcnt = 0;
  ++device_context::of(c).objects;
  const engine::lock_guard lock(engine::get());
  device_context::of(c).channels.push_back(made.get());
  return made.release();
}

SOFT_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* c) {
  if (!is_soft(c->context))
    return SOFT_NEXT(ibv_destroy_comp_channel)(c);
  {
    const engine::lock_guard lock(engine::get());
    if (c->refcnt != 0) {
      // If the device was removed, its queues cannot be destroyed.
      channel::of(c).events.leave_descriptor();
      return EBUSY;
    }
    std::erase(device_context::of(c->context).channels, &channel::of(c));
  }
  --device_context::of(c->context).objects;
  delete &channel::of(c);
  return 0;
}

SOFT_EXPORT int ibv_get_cq_event(ibv_comp_channel* c, ibv_cq** queue, void** queue_context) {
  if (!is_soft(c->context))
    return SOFT_NEXT(ibv_get_cq_event)(c, queue, queue_context);
  completion_queue* q = nullptr;
  if (const int error = channel::of(c).events.pop(
          q, [](completion_queue* taken) { taken->completions_got.got(); })) {
    errno = error;
    return -1;
  }
  *queue = q->base();
  *queue_context = q->cq_context;
  return 0;
}

SOFT_EXPORT void ibv_ack_cq_events(ibv_cq* q, unsigned n) {
  if (!is_soft(q->context))
    return SOFT_NEXT(ibv_ack_cq_events)(q, n);
  completion_queue::of(q).completions_got.acknowledged(n);
}

namespace soft {
namespace {

completion_queue* make_queue(ibv_context* c, std::uint32_t entries, void* queue_context,
                             ibv_comp_channel* events, std::uint32_t vector) {
  if (entries == 0 || entries > limits::completions ||
      vector >= static_cast<std::uint32_t>(c->num_comp_vectors)) {
    errno = EINVAL;
    return nullptr;
  }
  if (const int error = refuse_creation(c, place::create_cq)) {
    errno = error;
    return nullptr;
  }
  try {
    auto* const made = new completion_queue(
        entries, events == nullptr ? nullptr : &channel::of(events), habits().copied_at_poll != 0);
    made->vector = static_cast<int>(vector);
    made->context = c;
    made->channel = events;
    made->cq_context = queue_context;
    made->cqe = static_cast<int>(entries);
    if (events != nullptr) {
      const engine::lock_guard lock(engine::get());
      ++events->refcnt;
    }
    ++device_context::of(c).objects;
    return made;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

int poll_cq(ibv_cq* q, int most, ibv_wc* to) { return completion_queue::of(q).poll(most, to); }
int req_notify_cq(ibv_cq* q, int solicited_only) {
  completion_queue::of(q).arm(solicited_only != 0);
  return 0;
}
int post_srq_recv(ibv_srq* s, ibv_recv_wr* first, ibv_recv_wr** bad) {
  if (needs_attention(bit_of(place::post_recv)))
    if (const int error = refuse(s->context, place::post_recv)) {
      *bad = first;
      return error;
    }
  return shared_queue::of(s).receives.post(first, bad);
}

ibv_cq_ex* create_cq_ex(ibv_context* c, ibv_cq_init_attr_ex* a) {
  // The flags change nothing here: a queue of one thread is locked, and any overflow is reported.
  constexpr std::uint32_t known =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  const std::uint32_t flags = (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? a->flags : 0;
  if ((a->wc_flags & ~static_cast<std::uint64_t>(IBV_WC_STANDARD_FLAGS)) != 0 ||
      (a->comp_mask & ~static_cast<std::uint32_t>(IBV_CQ_INIT_ATTR_MASK_FLAGS)) != 0 ||
      (flags & ~known) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  completion_queue* const q = make_queue(c, a->cqe, a->cq_context, a->channel, a->comp_vector);
  if (q == nullptr)
    return nullptr;
  q->start_poll = [](ibv_cq_ex* e, ibv_poll_cq_attr* how) {
    return how->comp_mask != 0 ? EINVAL : static_cast<completion_queue*>(e)->start();
  };
  q->next_poll = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->next();
  };
  q->end_poll = [](ibv_cq_ex* e) {
    static_cast<completion_queue*>(e)->end();
  };
  q->read_opcode = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().opcode;
  };
  q->read_vendor_err = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().vendor_err;
  };
  q->read_byte_len = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().byte_len;
  };
  q->read_imm_data = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().imm_data;
  };
  q->read_qp_num = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().qp_num;
  };
  q->read_src_qp = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().src_qp;
  };
  q->read_wc_flags = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().wc_flags;
  };
  q->read_slid = [](ibv_cq_ex*) {
    return std::uint32_t(0);
  };
  q->read_sl = [](ibv_cq_ex* e) {
    return static_cast<completion_queue*>(e)->at_poll().sl;
  };
  q->read_dlid_path_bits = [](ibv_cq_ex*) {
    return std::uint8_t(0);
  };
  return q;
}

} // namespace

void fill_queue_functions(verbs_context& v) {
  v.create_cq_ex = create_cq_ex;
  v.context.ops.poll_cq = poll_cq;
  v.context.ops.req_notify_cq = req_notify_cq;
  v.context.ops.post_srq_recv = post_srq_recv;
}

} // namespace soft

SOFT_EXPORT ibv_cq* ibv_create_cq(ibv_context* c, int entries, void* queue_context,
                                  ibv_comp_channel* events, int vector) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_create_cq)(c, entries, queue_context, events, vector);
  auto* const q = make_queue(c, static_cast<std::uint32_t>(std::max(entries, 0)), queue_context,
                             events, static_cast<std::uint32_t>(vector));
  return q == nullptr ? nullptr : q->base();
}

SOFT_EXPORT int ibv_resize_cq(ibv_cq* q, int entries) {
  if (!is_soft(q->context))
    return SOFT_NEXT(ibv_resize_cq)(q, entries);
  if (const int error = refuse_removed(q->context))
    return error;
  if (entries <= 0 || entries > limits::completions)
    return EINVAL;
  const engine::lock_guard lock(engine::get());
  return completion_queue::of(q).resize(static_cast<unsigned>(entries));
}

namespace soft {
namespace {

// Drops the events about an object that is destroyed, and waits for those that the program has.
template <class Matches>
void end_events(ibv_context* c, acknowledged_events& got, Matches about) {
  device_context::of(c).events.remove_if(about, [](const ibv_async_event&) {});
  got.wait();
}

bool is_about_queue(ibv_event_type t) { return t == IBV_EVENT_CQ_ERR; }
bool is_about_shared(ibv_event_type t) {
  return t == IBV_EVENT_SRQ_ERR || t == IBV_EVENT_SRQ_LIMIT_REACHED;
}
bool is_about_pair(ibv_event_type t) {
  switch (t) {
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_PATH_MIG:
  case IBV_EVENT_PATH_MIG_ERR:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    return true;
  default:
    return false;
  }
}

acknowledged_events* events_of(const ibv_async_event& e) {
  if (is_about_queue(e.event_type))
    return &completion_queue::of(e.element.cq).events_got;
  if (is_about_shared(e.event_type))
    return &shared_queue::of(e.element.srq).events_got;
  if (is_about_pair(e.event_type))
    return &queue_pair::of(e.element.qp).events_got;
  return nullptr;
}
ibv_context* context_of(const ibv_async_event& e) {
  if (is_about_queue(e.event_type))
    return e.element.cq->context;
  if (is_about_shared(e.event_type))
    return e.element.srq->context;
  return is_about_pair(e.event_type) ? e.element.qp->context : nullptr;
}

} // namespace
} // namespace soft

SOFT_EXPORT int ibv_destroy_cq(ibv_cq* base) {
  if (!is_soft(base->context))
    return SOFT_NEXT(ibv_destroy_cq)(base);
  completion_queue& q = completion_queue::of(base);
  if (const int error = refuse_destruction(base->context, q))
    return error;
  if (q.users != 0)
    return EBUSY;
  if (q.events_to != nullptr) {
    {
      const engine::lock_guard lock(engine::get());
      q.drop_events();
    }
    q.events_to->events.remove_if([&](completion_queue* other) { return other == &q; },
                                  [](completion_queue*) {});
    // By the public member, as libibverbs does: a wrapper of these functions may have replaced it.
    const engine::lock_guard lock(engine::get());
    --q.channel->refcnt;
  }
  end_events(q.context, q.events_got, [&](const ibv_async_event& e) {
    return is_about_queue(e.event_type) && e.element.cq == base;
  });
  q.completions_got.wait();
  --device_context::of(q.context).objects;
  delete &q;
  return 0;
}

SOFT_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* a) {
  if (!is_soft(pd->context))
    return SOFT_NEXT(ibv_create_srq)(pd, a);
  if (!habits().shared_receives) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (a->attr.max_wr == 0 || a->attr.max_wr > limits::work_requests ||
      a->attr.max_sge > habits().receive_elements) {
    errno = EINVAL;
    return nullptr;
  }
  if (const int error = refuse_creation(pd->context, place::create_srq)) {
    errno = error;
    return nullptr;
  }
  try {
    auto* const made = new shared_queue(a->attr.max_wr, a->attr.max_sge);
    made->context = pd->context;
    made->srq_context = a->srq_context;
    made->pd = pd;
    made->limit = a->attr.srq_limit;
    ++domain::of(pd).objects;
    return made;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

SOFT_EXPORT int ibv_modify_srq(ibv_srq* s, ibv_srq_attr* a, int mask) {
  if (!is_soft(s->context))
    return SOFT_NEXT(ibv_modify_srq)(s, a, mask);
  if (const int error = refuse_removed(s->context))
    return error;
  shared_queue& own = shared_queue::of(s);
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
    return EINVAL;
  if ((mask & IBV_SRQ_MAX_WR) != 0)
    return EOPNOTSUPP;
  const engine::lock_guard lock(engine::get());
  if ((mask & IBV_SRQ_LIMIT) != 0) {
    if (a->srq_limit > own.receives.capacity())
      return EINVAL;
    own.limit = a->srq_limit;
  }
  return 0;
}

SOFT_EXPORT int ibv_query_srq(ibv_srq* s, ibv_srq_attr* a) {
  if (!is_soft(s->context))
    return SOFT_NEXT(ibv_query_srq)(s, a);
  if (const int error = refuse_removed(s->context))
    return error;
  const engine::lock_guard lock(engine::get());
  const shared_queue& own = shared_queue::of(s);
  *a = {own.receives.capacity(), own.receives.elements(), own.limit};
  return 0;
}

SOFT_EXPORT int ibv_destroy_srq(ibv_srq* s) {
  if (!is_soft(s->context))
    return SOFT_NEXT(ibv_destroy_srq)(s);
  shared_queue& own = shared_queue::of(s);
  if (const int error = refuse_destruction(s->context, own))
    return error;
  if (own.users != 0)
    return EBUSY;
  end_events(s->context, own.events_got, [&](const ibv_async_event& e) {
    return is_about_shared(e.event_type) && e.element.srq == s;
  });
  {
    const engine::lock_guard lock(engine::get());
    own.receives.close();
  }
  --domain::of(s->pd).objects;
  delete &own;
  return 0;
}

SOFT_EXPORT int ibv_get_async_event(ibv_context* c, ibv_async_event* e) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_get_async_event)(c, e);
  const int error = device_context::of(c).events.pop(*e, [](const ibv_async_event& taken) {
    if (acknowledged_events* const a = events_of(taken))
      a->got();
  });
  if (error == 0)
    return 0;
  errno = error;
  return -1;
}

SOFT_EXPORT void ibv_ack_async_event(ibv_async_event* e) {
  const ibv_context* const c = context_of(*e);
  if (c != nullptr && is_soft(c))
    return events_of(*e)->acknowledged(1);
  // An event of a port may be of either device. A program without libibverbs has no real one.
  if (auto* const real = SOFT_NEXT(ibv_ack_async_event))
    real(e);
}

namespace soft {

void end_events(queue_pair& qp) {
  end_events(qp.qp_base.context, qp.events_got, [&](const ibv_async_event& e) {
    return is_about_pair(e.event_type) && e.element.qp == qp.base();
  });
}

} // namespace soft

extern "C" __attribute__((visibility("default"))) int soft_get_vector(ibv_cq* queue) {
  return completion_queue::of(queue).vector;
}
