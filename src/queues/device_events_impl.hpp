// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/queues/device_events_face.hpp>
#include <asio_rdma/device_event.hpp>
#include <boost/asio/cancellation_type.hpp>

#include "queues/completion_service.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

namespace asio_rdma::detail {

/// The logic of `basic_device_events`: events that no operation has taken, or operations that wait.
class device_events_impl final : public context_member {
public:
  device_events_impl(asio::execution_context& context, const device& d);

  error_code open();
  void close();
  void cancel();
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  bool start(operation& op);
  std::uint64_t next_id() noexcept { return ids_.fetch_add(1, std::memory_order_relaxed) + 1; }
  const device& get_device() const noexcept { return device_; }

  void on_context_shutdown() override { close(); }
  void on_device_event(const ibv_async_event& event) noexcept override;
  const device& member_device() const noexcept override { return device_; }
  bool observes_queue_pairs() const noexcept override { return true; }

private:
  completion_service& service_;
  device device_;
  std::atomic<std::uint64_t> ids_{0};
  std::mutex mutex_;
  bool open_ = false;
  // Events that arrived while no operation waited. The oldest is at `first_`. An array rather than
  // a deque, because an event is stored without allocating memory.
  static constexpr std::size_t most_kept = 64;
  std::array<device_event, most_kept> events_;
  std::size_t first_ = 0, kept_ = 0;
  operation_list waiters_;
};

/// Stores an event in the result of an operation.
void set_event(operation& op, const device_event& event) noexcept;

} // namespace asio_rdma::detail
