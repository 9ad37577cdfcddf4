// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connecting/cm_connection.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// A call of rdma_connect(3). siw makes its TCP connection inside the call. A background thread
/// makes the call. Except for constants, the members are guarded by the connection's mutex.
class cm_connection::connect_call final : public cm_call {
public:
  connect_call(std::shared_ptr<cm_connection> c, rdma_cm_id* used, bool uses_iwarp,
               const rdma_conn_param& p) noexcept
      : id(used), iwarp(uses_iwarp), connection_(std::move(c)), parameters_(p) {}

  void run(const std::shared_ptr<background_call>& self) noexcept override {
    connection_->on_returned(std::static_pointer_cast<connect_call>(self), make());
  }
  void on_return(const std::shared_ptr<background_call>& self) override {
    connection_->take_result(std::static_pointer_cast<connect_call>(self));
  }
  /// Returns errno.
  int make() noexcept;

  /// Events may arrive before the call has returned, when the id cannot be used for the next step.
  /// Only the first two count: the answer, and the end of the connection.
  void keep(const cm_event& event) noexcept {
    if (event.type != RDMA_CM_EVENT_TIMEWAIT_EXIT && events != early.size())
      early[events++] = event;
  }

  /// Why the call has failed. If the device was removed meanwhile, the errno value is the result of
  /// that.
  error_code failure() const {
    const auto end = early.begin() + static_cast<std::ptrdiff_t>(events);
    return std::any_of(early.begin(), end,
                       [](const cm_event& e) { return e.type == RDMA_CM_EVENT_DEVICE_REMOVAL; })
               ? error_code(error::device_removed)
               : cm_error(error);
  }

  rdma_cm_id* const id; // after the attempt's end, the call's own unless the device is iWARP's
  const bool iwarp;
  bool returned = false;
  int error = 0;
  std::size_t events = 0;
  std::array<cm_event, 2> early;

private:
  const std::shared_ptr<cm_connection> connection_;
  rdma_conn_param parameters_; // the private data are the connection's
};

} // namespace asio_rdma::detail
