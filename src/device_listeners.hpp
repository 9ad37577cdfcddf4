// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

/// Who is told of an event, kept until it is acknowledged.
using heard = std::vector<std::shared_ptr<void>>;

/// Hears of a device's asynchronous events, on any thread.
class device_listener {
public:
  /// May not add or remove listeners.
  virtual void on_event(const ibv_async_event& event, heard& by) = 0;

protected:
  ~device_listener() = default;
};

/// All that listen to a device. An event can be read once (ibv_get_async_event(3)), and each
/// execution context that uses the device tries to: who gets it tells all.
class device_listeners {
public:
  /// Does not wait.
  void add(device_listener& who) {
    const std::lock_guard lock(mutex_);
    all_.push_back(&who);
  }
  /// When this returns `who` hears of nothing more, and nothing that it kept is left.
  void remove(device_listener& who) {
    const std::lock_guard reading(reading_);
    const std::lock_guard lock(mutex_);
    std::erase(all_, &who);
  }
  /// Reads an event and tells all of it; false if there is none. It is acknowledged only after
  /// everybody has heard of it, as until then the object that it names cannot be destroyed; and
  /// what has heard of it goes only after that, as it may own that object. One at a time, so that
  /// nobody who lets something go waits for another's acknowledgement.
  bool read(ibv_context* context) {
    const std::lock_guard reading(reading_);
    const auto all = listeners();
    heard by;
    struct acknowledged_at_end {
      ibv_async_event event;
      bool read;

      ~acknowledged_at_end() {
        if (read)
          ibv_ack_async_event(&event);
      }
    } next{{}, false};
    next.read = ibv_get_async_event(context, &next.event) == 0;
    if (!next.read)
      return false;
    if (next.event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
      last_receive_reported_.store(true);
    for (device_listener* who : all)
      who->on_event(next.event, by);
    return true;
  }

  /// Whether to wait for IBV_EVENT_QP_LAST_WQE_REACHED. False if an event was waited for in vain
  /// and the device has never reported one.
  bool reports_last_receive() const noexcept {
    return last_receive_reported_.load() || !last_receive_missed_.load();
  }
  void last_receive_not_reported() noexcept { last_receive_missed_.store(true); }

private:
  std::vector<device_listener*> listeners() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  std::recursive_mutex reading_; // also by what a listener kept, when that is destroyed
  std::mutex mutex_;
  std::atomic<bool> last_receive_reported_{false}, last_receive_missed_{false};
  std::vector<device_listener*> all_;
};

} // namespace asio_rdma::detail
