// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "verbs/device_listeners.hpp"

#include <asio_rdma/device.hpp>

#include <atomic>
#include <functional>

namespace asio_rdma::detail {

/// Waits until a queue pair no longer uses its shared receive queue.
///
/// A queue pair in the error state completes its receives; then the device reports
/// IBV_EVENT_QP_LAST_WQE_REACHED (InfiniBand Architecture Specification, o11-5.2.5). When a queue
/// pair is destroyed, some devices drop completions that were not polled, so those receives would
/// never complete (rdma-core: mlx5, mlx4, hns, bnxt_re, irdma, mthca, vmw_pvrdma).
class last_receive final : public device_listener {
public:
  last_receive(const device& d, const ibv_qp* qp);
  ~last_receive();

  /// From now on the queue pair can take receives.
  void may_take() noexcept { may_take_ = true; }
  bool can_take() const noexcept { return may_take_; }
  /// The queue pair has been moved to the error state: from now on the event is due.
  void expect() noexcept { due_since_ = clock::now(); }
  /// Waits for the event while it is needed. Returns false if the event does not come in time after
  /// `expect`: the queue pair may still have receives, which its destruction loses, unless the
  /// device keeps the completions (rxe).
  bool wait(const std::function<bool()>& is_needed) noexcept;

  void on_event(const ibv_async_event& event, notified_objects& notified) noexcept override;

private:
  using clock = device_listeners::clock;

  clock::time_point deadline(clock::time_point waits_since, bool keeps) const noexcept;

  device device_;
  const ibv_qp* qp_;
  bool may_take_ = false;
  clock::time_point due_since_;
  std::atomic<bool> reached_{false}, has_error_{false};
};

} // namespace asio_rdma::detail
