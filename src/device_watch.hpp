// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "descriptor_watch.hpp"
#include "device_listeners.hpp"

#include <asio_rdma/detail/completion_service.hpp>

#include <atomic>
#include <memory>
#include <mutex>

namespace asio_rdma::detail {

/// Reads a device's asynchronous events on the execution context, and tells the service of each
/// that any context has read.
class device_watch {
public:
  device_watch(completion_service& service, const device& d);

  error_code start();
  /// When this returns the service hears of nothing more.
  void stop();
  const device& get_device() const noexcept { return device_; }

private:
  struct reader final : scheduled_operation {
    explicit reader(device_watch& w) noexcept : scheduled_operation(&reader::execute), watch(w) {}
    static void execute(void* owner, scheduled_operation* base, const error_code&, std::size_t);

    device_watch& watch;
  };

  struct listener final : device_listener {
    explicit listener(completion_service& s, const device& d) : service(&s), from(d) {}
    void on_event(const ibv_async_event& event) override {
      const std::lock_guard lock(mutex);
      if (service != nullptr)
        service->broadcast(from, event);
    }

    std::mutex mutex;
    completion_service* service;
    device from;
  };

  void on_readable();
  void read_events();

  device device_;
  std::shared_ptr<listener> listener_;
  scheduler& scheduler_;
  reader reader_;
  std::atomic<bool> queued_{false};
  descriptor_watch<device_watch, &device_watch::on_readable> channel_;
};

} // namespace asio_rdma::detail
