// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

/// Hears of a device's asynchronous events, on any thread.
class device_listener {
public:
  virtual void on_event(const ibv_async_event& event) = 0;

protected:
  ~device_listener() = default;
};

/// All that listen to a device. An event can be read once (ibv_get_async_event(3)), and each
/// execution context that uses the device tries to: who gets it tells all.
class device_listeners {
public:
  void add(std::shared_ptr<device_listener> who) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(who));
  }
  void remove(const device_listener* who) {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [who](const auto& p) { return p.get() == who; });
  }
  void tell(const ibv_async_event& event) {
    std::vector<std::shared_ptr<device_listener>> now;
    {
      const std::lock_guard lock(mutex_);
      now = all_;
    }
    for (const auto& who : now)
      who->on_event(event);
  }

private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<device_listener>> all_;
};

} // namespace asio_rdma::detail
