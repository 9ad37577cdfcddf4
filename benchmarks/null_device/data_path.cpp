// SPDX-License-Identifier: BSL-1.0
#include "null_device.hpp"
#include "objects.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace null_device {
namespace {

counters totals;

constexpr ibv_wc_opcode completion_opcode[] = {
    IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND,      IBV_WC_SEND,    IBV_WC_RDMA_READ,
    IBV_WC_COMP_SWAP,  IBV_WC_FETCH_ADD,  IBV_WC_LOCAL_INV, IBV_WC_BIND_MW, IBV_WC_SEND,
};

void notify(completion_queue& cq) {
  cq.armed = false;
  if (!cq.channel)
    return;
  static_cast<channel*>(cq.channel)->pending.push_back(&cq);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(cq.channel->fd, &one, sizeof one);
}

inline bool complete(completion_queue& cq, const completion& c) {
  if (cq.tail - cq.head > cq.mask)
    return false;
  cq.ring[cq.tail++ & cq.mask] = c;
  if (cq.armed)
    notify(cq);
  return true;
}

} // namespace

counters& counts() { return totals; }

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  auto& qp = static_cast<queue_pair&>(*handle);
  auto& cq = static_cast<completion_queue&>(*qp.send_cq);
  ++totals.post_send_calls;
  for (; wr; wr = wr->next) {
    descriptor& d = qp.send_ring[qp.send_tail & qp.send_mask];
    d.remote_address = wr->wr.rdma.remote_addr;
    d.rkey = wr->wr.rdma.rkey;
    d.opcode_flags = static_cast<std::uint32_t>(wr->opcode) | wr->send_flags << 8;
    d.immediate = wr->imm_data;
    d.num_sge = static_cast<std::uint32_t>(wr->num_sge);
    if (d.num_sge > max_sge) {
      *bad_wr = wr;
      return EINVAL;
    }
    std::uint32_t bytes = 0;
    if (wr->send_flags & IBV_SEND_INLINE) {
      for (std::uint32_t i = 0; i < d.num_sge; ++i) {
        const ibv_sge& s = wr->sg_list[i];
        if (bytes + s.length > max_inline) {
          *bad_wr = wr;
          return EINVAL;
        }
        std::memcpy(d.payload + bytes, reinterpret_cast<const void*>(s.addr), s.length);
        bytes += s.length;
      }
    } else {
      for (std::uint32_t i = 0; i < d.num_sge; ++i) {
        d.sge[i] = wr->sg_list[i];
        bytes += wr->sg_list[i].length;
      }
    }
    const bool flushed = qp.state == IBV_QPS_ERR;
    if ((wr->send_flags & IBV_SEND_SIGNALED || qp.all_signaled || flushed) &&
        !complete(cq, {wr->wr_id, qp.qp_num, bytes, flushed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS,
                       completion_opcode[wr->opcode]})) {
      *bad_wr = wr;
      return ENOMEM;
    }
    ++qp.send_tail;
    ++totals.send_requests;
  }
  return 0;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  auto& qp = static_cast<queue_pair&>(*handle);
  ++totals.post_recv_calls;
  for (; wr; wr = wr->next) {
    if (qp.receive_tail - qp.receive_head > qp.receive_mask) {
      *bad_wr = wr;
      return ENOMEM;
    }
    auto& r = qp.receive_ring[qp.receive_tail++ & qp.receive_mask];
    r.wr_id = wr->wr_id;
    r.num_sge = std::min(static_cast<std::uint32_t>(wr->num_sge), max_sge);
    std::copy_n(wr->sg_list, r.num_sge, r.sge);
    ++totals.receive_requests;
  }
  if (qp.state == IBV_QPS_ERR)
    flush_receives(qp);
  return 0;
}

int post_srq_recv(ibv_srq*, ibv_recv_wr* wr, ibv_recv_wr**) {
  ++totals.post_recv_calls;
  for (; wr; wr = wr->next)
    ++totals.receive_requests;
  return 0;
}

int poll_cq(ibv_cq* handle, int n, ibv_wc* wc) {
  auto& cq = static_cast<completion_queue&>(*handle);
  ++totals.poll_calls;
  const auto found = std::min(static_cast<std::uint32_t>(n), cq.tail - cq.head);
  for (std::uint32_t i = 0; i < found; ++i) {
    const completion& c = cq.ring[cq.head++ & cq.mask];
    ibv_wc& w = wc[i];
    w.wr_id = c.wr_id;
    w.status = c.status;
    w.opcode = c.opcode;
    w.vendor_err = 0;
    w.byte_len = c.byte_len;
    w.qp_num = c.qp_num;
    w.wc_flags = 0;
  }
  totals.completions += found;
  return static_cast<int>(found);
}

int req_notify_cq(ibv_cq* handle, int) {
  ++totals.arm_calls;
  static_cast<completion_queue&>(*handle).armed = true;
  return 0;
}

void flush_receives(queue_pair& qp) {
  auto& cq = static_cast<completion_queue&>(*qp.recv_cq);
  while (qp.receive_head != qp.receive_tail) {
    const auto& r = qp.receive_ring[qp.receive_head & qp.receive_mask];
    if (!complete(cq, {r.wr_id, qp.qp_num, 0, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV}))
      return;
    ++qp.receive_head;
  }
}

} // namespace null_device
