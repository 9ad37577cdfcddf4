// SPDX-License-Identifier: BSL-1.0
#include "link/keep_alive_probe.hpp"

#include "link/link_impl.hpp"

#include <algorithm>

namespace asio_rdma::detail {

keep_alive_probe::keep_alive_probe(link_impl& link) noexcept
    : link_transfer(link, [](link_transfer& t, operation_list&) {
        static_cast<keep_alive_probe&>(t).asking_ = false;
      }) {}

void keep_alive_probe::start(std::chrono::milliseconds interval) {
  constexpr std::chrono::milliseconds longest = std::chrono::hours(24);
  if (interval <= interval.zero())
    return;
  // Checks twice per interval: a peer that falls silent after one check is probed at the next but
  // one.
  pause_ = std::chrono::microseconds(std::min(interval, longest)) / 2;
  wait();
}

void keep_alive_probe::wait() {
  link().call_at(link_impl::timer::alive, protocol_clock::now() + pause_, [this] {
    if (!link().failing())
      check();
  });
}

// While a signaled request is outstanding, the queue pair asks the peer and gives up in time (the
// device may have carried out an unsignaled one, such as the bind of an offer without credits). On
// iWARP it does not: TCP asks for the peer's acknowledgement only, and nothing asks for the answer
// of a READ. rxe must not be asked twice: it refuses to repeat a READ after a write of zero bytes
// (drivers/infiniband/sw/rxe/rxe_resp.c, read_reply).
void keep_alive_probe::check() {
  const bool is_asked = asking_ || (link().member_device().type() != transport::iwarp &&
                                    link().queue_pair()->awaits_send());
  if (signs_ == signs_before_ && !is_asked) {
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {};
    asking_ = link().post(*this);
  }
  signs_before_ = signs_;
  wait();
}

} // namespace asio_rdma::detail
