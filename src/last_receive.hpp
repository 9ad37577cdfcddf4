// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device_listeners.hpp"

#include <asio_rdma/device.hpp>

#include <atomic>

namespace asio_rdma::detail {

/// The end of what a queue pair takes from its shared receive queue.
///
/// A queue pair in the error state completes the receives that it has taken, and then the device
/// reports IBV_EVENT_QP_LAST_WQE_REACHED (InfiniBand Architecture Specification, o11-5.2.5). Some
/// devices drop the completions that were not polled when the queue pair is destroyed, so that the
/// receives would never end (rdma-core: mlx5, mlx4, hns).
class last_receive final : public device_listener {
public:
  last_receive(const device& d, const ibv_qp* qp);
  ~last_receive();

  /// The queue pair can take receives from now on.
  void may_take() noexcept { may_take_ = true; }
  /// Waits for the event of a queue pair that is in the error state, at most 100 ms. A device that
  /// was waited for in vain is not waited for again, unless it has reported such an event at any
  /// time.
  void wait() noexcept;

  void on_event(const ibv_async_event& event, heard& by) override;

private:
  device device_;
  const ibv_qp* qp_;
  bool may_take_ = false;
  std::atomic<bool> reached_{false};
};

} // namespace asio_rdma::detail
