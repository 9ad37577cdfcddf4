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
      has_atomics_(p.atomics != IBV_ATOMIC_NONE),
      invalidates_(p.no_windows != EOPNOTSUPP) {}

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
