// SPDX-License-Identifier: BSL-1.0
#include "verbs/last_receive.hpp"

#include "verbs/device_impl.hpp"

#include <algorithm>
#include <chrono>
#include <poll.h>

namespace asio_rdma::detail {
namespace {

using namespace std::chrono_literals;

// A ConnectX-4 took up to 25 ms for one queue pair. Those that end together are reported one after
// another, so each report gives the others the full time again.
constexpr auto patience = 1s, longest_wait = 10s;
// For a device that has missed an event and not reported one since. For queue pairs about which it
// has reported an error, that counts apart: bnxt_re reports the error in place of the event
// (bnxt_re/main.c), and mlx5 reports both.
constexpr auto patience_in_vain = 50ms;
// rxe of Linux 6.1 reports no such event.
constexpr auto patience_with_rxe = 100ms;
// Another thread may read the event.
constexpr std::chrono::milliseconds between_looks(1);

} // namespace

last_receive::last_receive(const device& d, const ibv_qp* qp) : device_(d), qp_(qp) {
  device_.listeners().add(qp_, *this);
}

last_receive::~last_receive() { device_.listeners().remove(qp_, *this); }

void last_receive::on_event(const ibv_async_event& event, notified_objects&) noexcept {
  switch (event.event_type) {
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    reached_.store(true);
    if (has_error_.load())
      device_.listeners().after_error(false);
    break;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    has_error_.store(true);
    break;
  default:
    break;
  }
}

// Queue pairs that end together wait one after another, but the event of each is due since it is in
// the error state. `keeps`: the device keeps the completions of a queue pair that is destroyed.
last_receive::clock::time_point last_receive::deadline(clock::time_point waits_since,
                                                       bool keeps) const noexcept {
  const device_listeners& listeners = device_.listeners();
  const clock::time_point reported = listeners.last_receive_reported_at();
  const bool in_vain =
      listeners.misses_last_receives() || (has_error_.load() && listeners.misses_after_errors());
  if (reported != clock::time_point{})
    return std::min(std::max(due_since_, reported) + (in_vain ? patience_in_vain : patience),
                    waits_since + longest_wait);
  if (!in_vain)
    return due_since_ + (keeps ? patience_with_rxe : patience);
  return due_since_ + (keeps ? 0ms : patience_in_vain);
}

bool last_receive::wait(const std::function<bool()>& is_needed) noexcept {
  device_listeners& listeners = device_.listeners();
  const bool keeps = device_.attributes().vendor_id == rxe_vendor;
  const auto waits_since = clock::now();
  while (!reached_.load() && is_needed()) {
    if (listeners.read(device_.native_handle()))
      continue;
    if (clock::now() >= deadline(waits_since, keeps)) {
      if (has_error_.load()) // it tells nothing of the ends of other queue pairs
        listeners.after_error(true);
      else
        listeners.last_receive_missed();
      return keeps;
    }
    pollfd events{device_.native_handle()->async_fd, POLLIN, 0};
    ::poll(&events, 1, static_cast<int>(between_looks.count()));
  }
  return true;
}

} // namespace asio_rdma::detail
