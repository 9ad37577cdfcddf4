// SPDX-License-Identifier: BSL-1.0
// The functions of librdmacm for the queues of an id.
#include "cm/functions.hpp"

#include "device/queue_pair.hpp"
#include "verbs/next.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <rdma/rdma_verbs.h>
#include <utility>

using namespace soft;

namespace soft {
namespace {

int modify_to(cm_id& id, ibv_qp_state state) {
  ibv_qp_attr a{};
  a.qp_state = state;
  int mask = 0;
  if (rdma_init_qp_attr(&id, &a, &mask) != 0)
    return errno;
  return ibv_modify_qp(id.qp, &a, mask);
}

} // namespace

void fill_route(cm_id& id, ibv_ah_attr& a) {
  a.is_global = 1;
  a.port_num = 1;
  a.grh.dgid = gid_of(id.route.addr.dst_addr);
  a.grh.sgid_index =
      static_cast<std::uint8_t>(std::max(index_of(gid_of(id.route.addr.src_addr)), 0));
  a.grh.hop_limit = hop_limit;
  a.grh.traffic_class = id.traffic_class;
}

// It becomes initialised once more, as the peer's rights depend on the depths, which are known now.
int make_ready(cm_id& id) {
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    if (const int error = modify_to(id, state))
      return error;
  return 0;
}

void end_queue_pair(cm_id& id) {
  if (id.qp == nullptr)
    return;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(id.qp, &a, IBV_QP_STATE);
}

} // namespace soft

SOFT_EXPORT int rdma_init_qp_attr(rdma_cm_id* base, ibv_qp_attr* a, int* mask) {
  cm_id& id = cm_id::of(base);
  const engine::lock_guard lock(engine::get());
  if (id.state == cm_state::removed)
    return fail(ENXIO);
  const bool open = id.state == cm_state::requested || id.state == cm_state::replied ||
                    id.state == cm_state::responded || id.state == cm_state::connected;
  const ibv_qp_state state = a->qp_state;
  *a = {};
  a->qp_state = state;
  if (id.is_datagram() && (state == IBV_QPS_RTR || state == IBV_QPS_RTS)) {
    *mask = IBV_QP_STATE | (state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0);
    return 0;
  }
  switch (state) {
  case IBV_QPS_INIT:
    if (id.state == cm_state::ended || id.state == cm_state::idle)
      return fail(EINVAL);
    a->port_num = 1;
    if (id.is_datagram()) {
      a->qkey = default_q_key;
      *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
      return 0;
    }
    a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (id.responder_resources != 0)
      a->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    return 0;
  case IBV_QPS_RTR:
    if (!open)
      return fail(EINVAL);
    fill_route(id, a->ah_attr);
    a->path_mtu = path_mtu;
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

// Without a domain of the program's, the id's is taken. Queues that neither the program gives nor
// the id has are made for the id: rdma_create_qp(3).
SOFT_EXPORT int rdma_create_qp_ex(rdma_cm_id* base, ibv_qp_init_attr_ex* a) {
  cm_id& id = cm_id::of(base);
  if (id.verbs == nullptr || id.qp != nullptr)
    return fail(EINVAL);
  const bool has_domain = (a->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 && a->pd != nullptr;
  if (has_domain && a->pd->context != id.verbs)
    return fail(EINVAL);
  if (!has_domain) {
    a->comp_mask |= IBV_QP_INIT_ATTR_PD;
    a->pd = id.pd;
  }
  if (a->srq == nullptr)
    a->srq = id.srq;
  const auto queue = [&](ibv_cq*& given, ibv_cq*& own, ibv_comp_channel*& events,
                         std::uint32_t entries) {
    if (given == nullptr && own == nullptr) {
      events = ibv_create_comp_channel(id.verbs);
      own = events == nullptr
                ? nullptr
                : ibv_create_cq(id.verbs, static_cast<int>(std::max(entries, 1u)), base, events, 0);
    }
    if (given == nullptr)
      given = own;
    return given != nullptr;
  };
  if (queue(a->send_cq, id.send_cq, id.send_cq_channel, a->cap.max_send_wr) &&
      queue(a->recv_cq, id.recv_cq, id.recv_cq_channel, a->cap.max_recv_wr))
    id.qp = ibv_create_qp_ex(id.verbs, a);
  // A queue pair for datagrams needs no peer.
  const int error = id.qp == nullptr   ? errno
                    : id.is_datagram() ? make_ready(id)
                                       : modify_to(id, IBV_QPS_INIT);
  if (error != 0) {
    rdma_destroy_qp(&id);
    return fail(error);
  }
  id.pd = a->pd;
  return 0;
}
SOFT_EXPORT int rdma_create_qp(rdma_cm_id* base, ibv_pd* pd, ibv_qp_init_attr* a) {
  ibv_qp_init_attr_ex all{};
  std::memcpy(&all, a, sizeof(*a)); // its first members
  all.comp_mask = IBV_QP_INIT_ATTR_PD;
  all.pd = pd;
  const int result = rdma_create_qp_ex(base, &all);
  std::memcpy(a, &all, sizeof(*a));
  return result;
}
SOFT_EXPORT void rdma_destroy_qp(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  if (id.qp != nullptr)
    ibv_destroy_qp(std::exchange(id.qp, nullptr));
  // One queue may serve both directions, if the program has set it.
  if (id.send_cq == id.recv_cq)
    id.send_cq = nullptr;
  if (id.send_cq_channel == id.recv_cq_channel)
    id.send_cq_channel = nullptr;
  for (ibv_cq** const q : {&id.send_cq, &id.recv_cq})
    if (*q != nullptr)
      ibv_destroy_cq(std::exchange(*q, nullptr));
  for (ibv_comp_channel** const c : {&id.send_cq_channel, &id.recv_cq_channel})
    if (*c != nullptr)
      ibv_destroy_comp_channel(std::exchange(*c, nullptr));
}

SOFT_EXPORT int rdma_create_srq_ex(rdma_cm_id* base, ibv_srq_init_attr_ex* a) {
  cm_id& id = cm_id::of(base);
  if ((a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || id.verbs == nullptr || id.srq != nullptr)
    return fail(EINVAL);
  if (a->srq_type != IBV_SRQT_BASIC)
    return fail(EOPNOTSUPP);
  if ((a->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || a->pd == nullptr) {
    a->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    a->pd = id.pd;
  }
  id.srq = ibv_create_srq(a->pd, reinterpret_cast<ibv_srq_init_attr*>(a));
  return id.srq == nullptr ? -1 : 0;
}
SOFT_EXPORT int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* a) {
  ibv_srq_init_attr_ex all{};
  std::memcpy(&all, a, sizeof(*a)); // its first members
  all.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  all.srq_type = IBV_SRQT_BASIC;
  all.pd = pd;
  const int result = rdma_create_srq_ex(id, &all);
  std::memcpy(a, &all, sizeof(*a));
  return result;
}
SOFT_EXPORT void rdma_destroy_srq(rdma_cm_id* base) {
  cm_id& id = cm_id::of(base);
  if (id.srq != nullptr)
    ibv_destroy_srq(std::exchange(id.srq, nullptr));
}
// Both are for a queue pair that the program has made itself.
SOFT_EXPORT int rdma_set_local_ece(rdma_cm_id* base, ibv_ece* e) {
  if (base == nullptr || base->qp != nullptr || e == nullptr || e->vendor_id == 0 ||
      e->comp_mask != 0)
    return fail(EINVAL);
  const engine::lock_guard lock(engine::get());
  cm_id::of(base).own_ece = *e;
  return 0;
}
SOFT_EXPORT int rdma_get_remote_ece(rdma_cm_id* base, ibv_ece* e) {
  if (base == nullptr || base->qp != nullptr || e == nullptr)
    return fail(EINVAL);
  const engine::lock_guard lock(engine::get());
  *e = cm_id::of(base).peer_ece;
  return 0;
}
