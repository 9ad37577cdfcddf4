// SPDX-License-Identifier: BSL-1.0
#include "verbs/last_receive.hpp"

#include <chrono>
#include <poll.h>

namespace asio_rdma::detail {
namespace {

// A ConnectX-4 took up to 25 ms. A device that has reported such an event before has more time.
constexpr std::chrono::milliseconds patience(100), patience_with_reports(500);
// Another thread may read the event.
constexpr std::chrono::milliseconds between_looks(1);

} // namespace

last_receive::last_receive(const device& d, const ibv_qp* qp) : device_(d), qp_(qp) {
  device_.listeners().add(*this);
}

last_receive::~last_receive() { device_.listeners().remove(*this); }

void last_receive::on_event(const ibv_async_event& event, notified_objects&) noexcept {
  if (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp_)
    reached_.store(true);
}

void last_receive::wait() noexcept {
  device_listeners& listeners = device_.listeners();
  if (!may_take_ || !listeners.reports_last_receive())
    return;
  const auto deadline = std::chrono::steady_clock::now() +
                        (listeners.has_reported_last_receive() ? patience_with_reports : patience);
  while (!reached_.load()) {
    if (listeners.read(device_.native_handle()))
      continue;
    if (std::chrono::steady_clock::now() >= deadline) {
      listeners.last_receive_not_reported();
      return;
    }
    pollfd events{device_.native_handle()->async_fd, POLLIN, 0};
    ::poll(&events, 1, static_cast<int>(between_looks.count()));
  }
}

} // namespace asio_rdma::detail
