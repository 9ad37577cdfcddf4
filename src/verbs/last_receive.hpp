// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "verbs/device_listeners.hpp"

#include <asio_rdma/device.hpp>

#include <atomic>

namespace asio_rdma::detail {

/// Waits until a queue pair no longer uses its shared receive queue.
///
/// A queue pair in the error state completes its receives; then the device reports
/// IBV_EVENT_QP_LAST_WQE_REACHED (InfiniBand Architecture Specification, o11-5.2.5). When a queue
/// pair is destroyed, some devices drop completions that were not polled, so those receives would
/// never complete (rdma-core: mlx5, mlx4, hns).
class last_receive final : public device_listener {
public:
  last_receive(const device& d, const ibv_qp* qp);
  ~last_receive();

  /// From now on the queue pair can take receives.
  void may_take() noexcept { may_take_ = true; }
  /// Waits for the event, at most 100 ms. The queue pair is in the error state. If a device has
  /// once not reported the event in time, later calls do not wait, unless the device has ever
  /// reported such an event.
  void wait() noexcept;

  void on_event(const ibv_async_event& event, notified_objects& notified) noexcept override;

private:
  device device_;
  const ibv_qp* qp_;
  bool may_take_ = false;
  std::atomic<bool> reached_{false};
};

} // namespace asio_rdma::detail
