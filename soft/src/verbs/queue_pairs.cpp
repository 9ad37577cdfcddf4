// SPDX-License-Identifier: BSL-1.0
// Queue pairs.
#include "device/queue_pair.hpp"

#include "device/faults.hpp"
#include "device/limits.hpp"
#include "verbs/functions.hpp"
#include "verbs/next.hpp"

#include <algorithm>
#include <cerrno>
#include <new>

using namespace soft;

namespace soft {

namespace {

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  std::uint32_t posted = 0;
  if (needs_attention(bit_of(place::post_send) | is_timed)) {
    if (const int error = refuse(qp->context, place::post_send)) {
      *bad = first;
      return error;
    }
    posted = queue_pair::post_time();
  }
  return queue_pair::of(qp).post_send(first, bad, posted);
}
int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  if (needs_attention(bit_of(place::post_recv)))
    if (const int error = refuse(qp->context, place::post_recv)) {
      *bad = first;
      return error;
    }
  return queue_pair::of(qp).post_receive(first, bad);
}

ibv_qp* create(ibv_pd* pd, ibv_qp_init_attr& a) {
  const auto fail = [](int error) -> ibv_qp* {
    errno = error;
    return nullptr;
  };
  const personality& p = habits();
  if (!((a.qp_type == IBV_QPT_RC && p.reliable) || (a.qp_type == IBV_QPT_UC && p.unreliable) ||
        (a.qp_type == IBV_QPT_UD && p.datagrams)) ||
      (a.srq != nullptr && !p.shared_receives))
    return fail(EOPNOTSUPP);
  if (a.send_cq == nullptr || a.recv_cq == nullptr || a.cap.max_send_wr > limits::work_requests ||
      a.cap.max_recv_wr > limits::work_requests || a.cap.max_send_sge > p.send_elements ||
      a.cap.max_recv_sge > p.receive_elements || a.cap.max_inline_data > p.inline_bytes)
    return fail(EINVAL);
  if (const int error = refuse_creation(pd->context, place::create_qp))
    return fail(error);
  // Elements and inline data share the memory of a request.
  a.cap.max_inline_data = std::min<std::uint32_t>(
      std::max<std::uint32_t>(a.cap.max_inline_data, a.cap.max_send_sge * sizeof(ibv_sge)),
      p.inline_bytes);
  try {
    if (a.srq != nullptr)
      a.cap.max_recv_wr = a.cap.max_recv_sge = 0;
    auto* const made = new queue_pair(a);
    ibv_qp& q = made->qp_base;
    q.context = pd->context;
    q.qp_context = a.qp_context;
    q.pd = pd;
    q.send_cq = a.send_cq;
    q.recv_cq = a.recv_cq;
    q.srq = a.srq;
    q.state = IBV_QPS_RESET;
    q.qp_type = a.qp_type;
    {
      // From `open` on, other threads find the queue pair.
      const engine::lock_guard lock(engine::get());
      if (!made->open()) {
        delete made;
        return fail(ENOMEM);
      }
      q.handle = q.qp_num;
    }
    ++completion_queue::of(a.send_cq).users;
    ++completion_queue::of(a.recv_cq).users;
    if (a.srq != nullptr)
      ++shared_queue::of(a.srq).users;
    ++domain::of(pd).objects;
    return &q;
  } catch (const std::bad_alloc&) {
    return fail(ENOMEM);
  }
}

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* a) {
  constexpr std::uint32_t known =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const bool extended = (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if ((a->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || (a->comp_mask & ~known) != 0 ||
      ((a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && a->create_flags != 0) ||
      (extended &&
       (habits().built_requests == 0 || !has_operations(a->qp_type, a->send_ops_flags)))) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  // The attributes begin as those of ibv_create_qp do.
  ibv_qp* const made = create(a->pd, *reinterpret_cast<ibv_qp_init_attr*>(a));
  if (made != nullptr && extended)
    extend(queue_pair::of(made), a->send_ops_flags);
  return made;
}

} // namespace

void fill_queue_pair_functions(verbs_context& v) {
  v.create_qp_ex = create_qp_ex;
  v.context.ops.post_send = post_send;
  v.context.ops.post_recv = post_recv;
}

} // namespace soft

SOFT_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* a) {
  return is_soft(pd->context) ? create(pd, *a) : SOFT_NEXT(ibv_create_qp)(pd, a);
}

SOFT_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* a, int mask) {
  if (!is_soft(qp->context))
    return SOFT_NEXT(ibv_modify_qp)(qp, a, mask);
  if (const int refused = refuse(qp->context, place::modify_qp))
    return refused;
  const engine::lock_guard lock(engine::get());
  const int error = queue_pair::of(qp).modify(*a, mask);
  if (error == 0 && (mask & IBV_QP_STATE) != 0)
    qp->state = a->qp_state;
  return error;
}

SOFT_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* a, int mask, ibv_qp_init_attr* init) {
  if (!is_soft(qp->context))
    return SOFT_NEXT(ibv_query_qp)(qp, a, mask, init);
  if (const int error = refuse_removed(qp->context))
    return error;
  const engine::lock_guard lock(engine::get());
  queue_pair& own = queue_pair::of(qp);
  own.query(*a);
  qp->state = a->qp_state;
  if (init != nullptr)
    *init = own.made_of;
  return 0;
}

SOFT_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  if (!is_soft(qp->context))
    return SOFT_NEXT(ibv_destroy_qp)(qp);
  queue_pair& own = queue_pair::of(qp);
  if (const int error = refuse_destruction(qp->context, own))
    return error;
  {
    const engine::lock_guard lock(engine::get());
    own.close();
  }
  end_events(own);
  --completion_queue::of(qp->send_cq).users;
  --completion_queue::of(qp->recv_cq).users;
  if (qp->srq != nullptr)
    --shared_queue::of(qp->srq).users;
  --domain::of(qp->pd).objects;
  delete &own;
  return 0;
}

// No: the bytes are copied by functions that promise no order.
SOFT_EXPORT int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode op, std::uint32_t flags) {
  return is_soft(qp->context) ? 0 : SOFT_NEXT(ibv_query_qp_data_in_order)(qp, op, flags);
}
SOFT_EXPORT int ibv_set_ece(ibv_qp* qp, ibv_ece* e) {
  if (!is_soft(qp->context))
    return SOFT_NEXT(ibv_set_ece)(qp, e);
  const engine::lock_guard lock(engine::get());
  return errno = queue_pair::of(qp).set_ece(*e);
}
SOFT_EXPORT int ibv_query_ece(ibv_qp* qp, ibv_ece* e) {
  if (!is_soft(qp->context))
    return SOFT_NEXT(ibv_query_ece)(qp, e);
  const engine::lock_guard lock(engine::get());
  return errno = queue_pair::of(qp).query_ece(*e);
}
SOFT_EXPORT int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
  return is_soft(qp->context) ? EOPNOTSUPP : SOFT_NEXT(ibv_attach_mcast)(qp, gid, lid);
}
SOFT_EXPORT int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
  return is_soft(qp->context) ? EOPNOTSUPP : SOFT_NEXT(ibv_detach_mcast)(qp, gid, lid);
}
