// SPDX-License-Identifier: BSL-1.0
#include "null_device.hpp"
#include "objects.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

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

// Copies between the elements of a request and consecutive memory.
enum class direction { gather, scatter };

std::uint32_t copy(const ibv_sge* elements, std::uint32_t n, char* memory, direction to) {
  std::uint32_t bytes = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    void* element = reinterpret_cast<void*>(elements[i].addr);
    if (to == direction::gather)
      std::memcpy(memory + bytes, element, elements[i].length);
    else
      std::memcpy(element, memory + bytes, elements[i].length);
    bytes += elements[i].length;
  }
  return bytes;
}

// The bytes of a message into the elements of a receive.
void deliver(const descriptor& d, bool is_inline, std::uint32_t bytes,
             const queue_pair::receive& r) {
  if (is_inline || d.num_sge == 1) {
    const char* source = is_inline ? d.payload : reinterpret_cast<const char*>(d.sge[0].addr);
    for (std::uint32_t i = 0; bytes != 0 && i < r.num_sge; ++i) {
      const std::uint32_t part = std::min(bytes, r.sge[i].length);
      std::memcpy(reinterpret_cast<void*>(r.sge[i].addr), source, part);
      source += part;
      bytes -= part;
    }
  } else if (r.num_sge == 1) {
    copy(d.sge, d.num_sge, reinterpret_cast<char*>(r.sge[0].addr), direction::gather);
  } else {
    static std::vector<char> all;
    all.resize(std::max<std::size_t>(all.size(), bytes));
    copy(d.sge, d.num_sge, all.data(), direction::gather);
    const ibv_sge whole{reinterpret_cast<std::uintptr_t>(all.data()), bytes, 0};
    descriptor one;
    one.sge[0] = whole;
    one.num_sge = 1;
    deliver(one, false, bytes, r);
  }
}

void receive(queue_pair& peer, const ibv_send_wr& wr, const descriptor& d, std::uint32_t bytes) {
  if (peer.receive_head == peer.receive_tail) {
    std::fputs("null device: a message has no posted receive\n", stderr);
    std::abort();
  }
  const auto& r = peer.receive_ring[peer.receive_head++ & peer.receive_mask];
  const bool written = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!written)
    deliver(d, wr.send_flags & IBV_SEND_INLINE, bytes, r);
  unsigned flags = 0;
  if (written || wr.opcode == IBV_WR_SEND_WITH_IMM)
    flags = IBV_WC_WITH_IMM;
  else if (wr.opcode == IBV_WR_SEND_WITH_INV)
    flags = IBV_WC_WITH_INV;
  complete(static_cast<completion_queue&>(*peer.recv_cq),
           {r.wr_id, peer.qp_num, bytes, IBV_WC_SUCCESS,
            written ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, wr.imm_data, flags});
}

void perform(queue_pair& peer, const ibv_send_wr& wr, const descriptor& d, std::uint32_t bytes) {
  char* const remote = reinterpret_cast<char*>(wr.wr.rdma.remote_addr);
  switch (wr.opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    if (wr.send_flags & IBV_SEND_INLINE)
      std::memcpy(remote, d.payload, bytes);
    else
      copy(d.sge, d.num_sge, remote, direction::gather);
    if (wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
      receive(peer, wr, d, bytes);
    break;
  case IBV_WR_RDMA_READ:
    copy(d.sge, d.num_sge, remote, direction::scatter);
    break;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
  case IBV_WR_ATOMIC_CMP_AND_SWP: {
    std::uint64_t found;
    std::memcpy(&found, reinterpret_cast<void*>(wr.wr.atomic.remote_addr), sizeof found);
    const bool adds = wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    const std::uint64_t next = adds ? found + wr.wr.atomic.compare_add
                               : found == wr.wr.atomic.compare_add ? wr.wr.atomic.swap
                                                                   : found;
    std::memcpy(reinterpret_cast<void*>(wr.wr.atomic.remote_addr), &next, sizeof next);
    std::memcpy(reinterpret_cast<void*>(d.sge[0].addr), &found, sizeof found);
    break;
  }
  case IBV_WR_SEND:
  case IBV_WR_SEND_WITH_IMM:
  case IBV_WR_SEND_WITH_INV:
    receive(peer, wr, d, bytes);
    break;
  default: // a window or a key
    break;
  }
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
    if (qp.peer && !flushed)
      perform(*qp.peer, *wr, d, bytes);
    if ((wr->send_flags & IBV_SEND_SIGNALED || qp.all_signaled || flushed) &&
        !complete(cq, {wr->wr_id, qp.qp_num, bytes, flushed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS,
                       completion_opcode[wr->opcode], 0, 0})) {
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
    w.imm_data = c.immediate;
    w.wc_flags = c.flags;
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
    if (!complete(cq, {r.wr_id, qp.qp_num, 0, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0, 0}))
      return;
    ++qp.receive_head;
  }
}

} // namespace null_device
