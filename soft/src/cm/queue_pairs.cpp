// SPDX-License-Identifier: BSL-1.0
// The functions of librdmacm for the queue pair of an id.
#include "cm/functions.hpp"

#include "device/queue_pair.hpp"
#include "verbs/next.hpp"

#include <algorithm>
#include <cerrno>
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
               : ibv_create_cq(id.verbs, static_cast<int>(std::max(entries, 1u)), base, events, 0);
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
