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

void keep_alive_probe::check() {
  if (signs_ == signs_before_ && !asking_) {
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {};
    asking_ = link().post(*this);
  }
  signs_before_ = signs_;
  wait();
}

} // namespace asio_rdma::detail
