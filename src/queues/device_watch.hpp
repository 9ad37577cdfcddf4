// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/descriptor_watch.hpp"
#include "queues/completion_service.hpp"
#include "verbs/device_listeners.hpp"

#include <atomic>
#include <memory>

namespace asio_rdma::detail {

/// Reads a device's asynchronous events on the execution context, and reports events that any
/// context has read to the service.
class device_watch final : public device_listener,
                           public std::enable_shared_from_this<device_watch> {
public:
  device_watch(completion_service& service, const device& d);

  error_code start();
  /// Leaves the descriptor to another watch, which may then call `start`. Does not block.
  void leave();
  /// After the return, the service is not called any more. Waits for an event that is being
  /// reported.
  void stop();
  const device& get_device() const noexcept { return device_; }

  void on_event(const ibv_async_event& event, heard& by) noexcept override;

private:
  struct reader final : scheduled_operation {
    explicit reader(device_watch& w) noexcept : scheduled_operation(&reader::execute), watch(w) {}
    static void execute(void* owner, scheduled_operation* base, const error_code&, std::size_t);

    device_watch& watch;
  };

  void on_readable();
  void read_events() noexcept;

  completion_service& service_;
  device device_;
  scheduler& scheduler_;
  reader reader_;
  std::atomic<bool> queued_{false};
  std::shared_ptr<device_watch> self_; // set while the reader is queued
  descriptor_watch<device_watch, &device_watch::on_readable> channel_;
};

} // namespace asio_rdma::detail
