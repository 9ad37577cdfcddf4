// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

/// References to the objects that an event was reported to, kept until the event is acknowledged.
using heard = std::vector<std::shared_ptr<void>>;

/// A subscriber to a device's asynchronous events. Called on any thread.
class device_listener {
public:
  /// Must not add or remove listeners. References added to `by` live until the acknowledgement.
  virtual void on_event(const ibv_async_event& event, heard& by) = 0;

protected:
  ~device_listener() = default;
};

/// The subscribers to a device's asynchronous events. Each event can be read only once
/// (ibv_get_async_event(3)), by any of the contexts that use the device. The context that reads an
/// event reports it to all subscribers.
class device_listeners {
public:
  /// Does not block.
  void add(device_listener& who) {
    const std::lock_guard lock(mutex_);
    all_.push_back(&who);
  }
  /// After the return, `who` is not called any more, and all references that it kept are released.
  void remove(device_listener& who) {
    const std::lock_guard reading(reading_);
    const std::lock_guard lock(mutex_);
    std::erase(all_, &who);
  }
  /// Reads an event and reports it to all subscribers. Returns false if there is no event. The
  /// event is acknowledged after the reports: until then the object that it names cannot be
  /// destroyed. References kept in `heard` are released after the acknowledgement, because they may
  /// own that object. Only one thread reads at a time, so that releasing one of them never waits
  /// for the acknowledgement of another thread.
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

  /// Whether to wait for IBV_EVENT_QP_LAST_WQE_REACHED. False if the device has once failed to
  /// report it in time and has never reported one.
  bool reports_last_receive() const noexcept {
    return last_receive_reported_.load() || !last_receive_missed_.load();
  }
  void last_receive_not_reported() noexcept { last_receive_missed_.store(true); }

private:
  std::vector<device_listener*> listeners() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  std::recursive_mutex reading_; // recursive: a released listener may lock it
  std::mutex mutex_;
  std::atomic<bool> last_receive_reported_{false}, last_receive_missed_{false};
  std::vector<device_listener*> all_;
};

} // namespace asio_rdma::detail
