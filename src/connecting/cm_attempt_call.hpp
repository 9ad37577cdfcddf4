// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connecting/cm_connection.hpp"
#include "connecting/cm_queue_pair.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// The calls of one step of an attempt that may block: those that change the queue pair's state,
/// and rdma_connect(3), rdma_accept(3) or rdma_establish(3). siw makes its TCP connection inside
/// rdma_connect; adapters take long to change a state. A background thread makes the calls. Except
/// for constants, the members are guarded by the connection's mutex.
class cm_connection::attempt_call final : public cm_call {
public:
  /// `lingers`: the kernel uses the queue pair and the id until the call has returned.
  attempt_call(std::shared_ptr<cm_connection> c, cm_queue_pair used, bool lingers_,
               private_data data, cm_queue_pair::read_limits reads)
      : id(used.id),
        step(used.now),
        lingers(lingers_),
        connection_(std::move(c)),
        queue_pair_(std::move(used)),
        data_(std::move(data)),
        reads_(reads) {}

  /// A confirmation begins with this change of the queue pair's state.
  void begin_with(const cm_queue_pair::change& c) noexcept { change_ = c; }

  void run(const std::shared_ptr<background_call>& self) noexcept override {
    connection_->on_returned(std::static_pointer_cast<attempt_call>(self), make());
  }
  void on_return(const std::shared_ptr<background_call>& self) override {
    connection_->take_result(std::static_pointer_cast<attempt_call>(self));
  }
  error_code make() noexcept;
  /// Called when the calls have returned. The queue pair's context must not be destroyed while the
  /// last reference is dropped.
  std::shared_ptr<queue_pair_impl> release_queue_pair() noexcept {
    return std::move(queue_pair_.qp);
  }

  /// Events may arrive before the call has returned, when the id cannot be used for the next step.
  /// Only the first two count: the answer, and the end of the connection.
  void keep(const cm_event& event) noexcept {
    if (event.type != RDMA_CM_EVENT_TIMEWAIT_EXIT && events != early.size())
      early[events++] = event;
  }

  rdma_cm_id* const id; // after the attempt's end, the call's own unless it lingers
  const cm_queue_pair::step step;
  const bool lingers;
  bool returned = false;
  error_code error;
  std::size_t events = 0;
  std::array<cm_event, 2> early;

private:
  error_code request() const noexcept;
  error_code answer() const noexcept;
  error_code confirm() noexcept;

  const std::shared_ptr<cm_connection> connection_;
  cm_queue_pair queue_pair_;
  const private_data data_;
  const cm_queue_pair::read_limits reads_;
  cm_queue_pair::change change_;
};

} // namespace asio_rdma::detail
