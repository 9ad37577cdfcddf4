// SPDX-License-Identifier: BSL-1.0
#include "device/send_queue.hpp"

namespace soft {
namespace {

// Elements and inline data share the memory of a request.
std::size_t request_bytes(const ibv_qp_cap& c) {
  return std::max<std::size_t>(c.max_send_sge * sizeof(ibv_sge), c.max_inline_data);
}

} // namespace

send_queue::send_queue(const ibv_qp_init_attr& a, const personality& p)
    : ring_(a.cap.max_send_wr, request_bytes(a.cap)),
      elements_(a.cap.max_send_sge),
      read_elements_(std::min(a.cap.max_send_sge, p.read_elements)),
      inline_bytes_(a.cap.max_inline_data),
      signaled_(a.sq_sig_all != 0 ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u),
      setters_(a.qp_type == IBV_QPT_UD ? data | address : data),
      has_atomics_(p.atomics != IBV_ATOMIC_NONE) {}

// False: the queue pair has no such request.
inline bool send_queue::build(send_work& r, const ibv_send_wr& from) const noexcept {
  fill(r, from.opcode, from.wr_id, from.send_flags, from.imm_data);
  switch (from.opcode) {
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    if (!has_atomics_)
      return false;
    r.address = from.wr.atomic.remote_addr;
    r.key = from.wr.atomic.rkey;
    r.compare_add = from.wr.atomic.compare_add;
    r.swap = from.wr.atomic.swap;
    break;
  case IBV_WR_BIND_MW:
    r.window = from.bind_mw.mw;
    r.key = from.bind_mw.rkey;
    r.binding = from.bind_mw.bind_info;
    break;
  default:
    if ((setters_ & address) != 0) {
      r.address_handle = from.wr.ud.ah;
      r.qp_num = from.wr.ud.remote_qpn;
      r.q_key = from.wr.ud.remote_qkey;
    } else {
      r.address = from.wr.rdma.remote_addr;
      r.key = from.wr.rdma.rkey;
    }
  }
  const auto n = static_cast<unsigned>(from.num_sge); // a negative number is beyond all limits
  if ((from.send_flags & IBV_SEND_INLINE) == 0)
    return add_elements(r, from.sg_list, n);
  if (n > elements_ || fetches(from.opcode))
    return false;
  for (unsigned i = 0; i != n; ++i)
    if (!add_inline(r, reinterpret_cast<const void*>(from.sg_list[i].addr), from.sg_list[i].length))
      return false;
  return true;
}

int send_queue::post(ibv_send_wr*& first, std::uint32_t posted) noexcept {
  const std::lock_guard lock(posting_);
  int error = 0;
  unsigned n = 0;
  for (; first != nullptr; first = first->next, ++n) {
    send_work* const r = ring_.place(n);
    if (r == nullptr || !build(*r, *first)) [[unlikely]] {
      error = r == nullptr ? ENOMEM : EINVAL;
      break;
    }
    r->posted = posted;
  }
  ring_.add(n);
  return error;
}

void send_queue::stamp(std::uint32_t posted) noexcept {
  for (unsigned n = 0; n != built_; ++n)
    ring_.place(n)->posted = posted;
}

int send_queue::complete() noexcept {
  if (lacks_ != 0) [[unlikely]]
    refuse(EINVAL);
  const int error = error_;
  if (error == 0) [[likely]]
    ring_.add(built_);
  finish();
  return error;
}

} // namespace soft
