// SPDX-License-Identifier: BSL-1.0
// FLUSH (InfiniBand specification, annex A19), which rdma-core 44 does not have. So the constants
// of the kernel's interface (rdma/ib_user_verbs.h) are here, and the members of verbs objects are
// named in templates, which look for them.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>

namespace asio_rdma::detail {

inline constexpr auto flush_opcode = static_cast<ibv_wr_opcode>(14);  // IBV_WR_FLUSH
inline constexpr std::uint64_t visible_flush_capability = 1ULL << 38; // ibv_device_attr_ex
inline constexpr std::uint64_t persistent_flush_capability = 1ULL << 39;
inline constexpr unsigned visible_flush_access = 1u << 8; // IBV_ACCESS_FLUSH_GLOBAL
inline constexpr unsigned persistent_flush_access = 1u << 9;
inline constexpr std::uint64_t flush_of_send_operations = 1ULL << 11; // IBV_QP_EX_WITH_FLUSH

template <class QueuePair>
concept flushable = requires(QueuePair* q) {
  q->wr_flush;
};

/// Whether rdma-core has FLUSH.
inline constexpr bool is_flush_known = flushable<ibv_qp_ex>;

/// Creates a queue pair to which FLUSH can be posted. Null, with `errno`, if it cannot be created.
inline ibv_qp* create_with_flush(ibv_pd* pd, ibv_qp_init_attr& init) noexcept {
  ibv_qp_init_attr_ex with{};
  with.qp_context = init.qp_context;
  with.send_cq = init.send_cq;
  with.recv_cq = init.recv_cq;
  with.srq = init.srq;
  with.cap = init.cap;
  with.qp_type = init.qp_type;
  with.sq_sig_all = init.sq_sig_all;
  with.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  with.pd = pd;
  with.send_ops_flags = flush_of_send_operations;
  ibv_qp* const result = ibv_create_qp_ex(pd->context, &with);
  if (result != nullptr)
    init.cap = with.cap;
  return result;
}

/// Whether FLUSH can be posted to the queue pair.
template <class QueuePair = ibv_qp_ex>
bool takes_flush(ibv_qp* qp) noexcept {
  if constexpr (flushable<QueuePair>) {
    const QueuePair* const q = ibv_qp_to_qp_ex(qp);
    return q != nullptr && q->wr_flush != nullptr;
  } else {
    return false;
  }
}

/// Posts a FLUSH: its range is the remote address and the length of the first element, and
/// `imm_data` is the type of placement. Returns 0 or an errno value.
template <class QueuePair = ibv_qp_ex>
int post_flush(ibv_qp* qp, const ibv_send_wr& wr) noexcept {
  if constexpr (flushable<QueuePair>) {
    constexpr std::uint8_t range = 0; // IBV_FLUSH_RANGE
    QueuePair* const q = ibv_qp_to_qp_ex(qp);
    ibv_wr_start(q);
    q->wr_id = wr.wr_id;
    q->wr_flags = wr.send_flags;
    q->wr_flush(q, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, wr.sg_list->length,
                static_cast<std::uint8_t>(wr.imm_data), range);
    return ibv_wr_complete(q);
  } else {
    return EOPNOTSUPP;
  }
}

} // namespace asio_rdma::detail
