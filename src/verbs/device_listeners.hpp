// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/intrusive/list.hpp>

#include "verbs/notified_objects.hpp"

#include <atomic>
#include <chrono>
#include <infiniband/verbs.h>
#include <iterator>
#include <mutex>

namespace asio_rdma::detail {

/// A subscriber to the asynchronous events of a device. It is called on any thread.
class device_listener : public boost::intrusive::list_base_hook<
                            boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  /// Must not add or remove listeners.
  virtual void on_event(const ibv_async_event& event, notified_objects& notified) noexcept = 0;

protected:
  ~device_listener() = default;
};

/// The subscribers to a device. An event can be read once (ibv_get_async_event(3)), and each
/// execution context that uses the device tries to read it. The reader reports it to all
/// subscribers.
class device_listeners {
public:
  using clock = std::chrono::steady_clock;

  /// Does not block.
  void add(device_listener& listener) noexcept {
    const std::lock_guard lock(mutex_);
    all_.push_back(listener);
  }
  /// After the return, `listener` is not called any more, and all references that it kept are
  /// released.
  void remove(device_listener& listener) noexcept {
    const std::lock_guard reading(reading_);
    const std::lock_guard lock(mutex_);
    all_.erase(decltype(all_)::s_iterator_to(listener));
  }
  /// Reads an event and reports it to all subscribers. Returns false if there is no event. The
  /// event is acknowledged after all reports, because until then the object that it names cannot be
  /// destroyed. References are released after that, because one may own that object. Events are
  /// read one at a time, so that no destructor waits for the acknowledgement of another thread. A
  /// nested call, by the destructor of such an object, returns false: the outer call reads on.
  bool read(ibv_context* context) noexcept {
    const std::lock_guard reading(reading_);
    if (notifying_)
      return false;
    struct while_notifying {
      bool& flag;

      explicit while_notifying(bool& f) noexcept : flag(f) { flag = true; }
      ~while_notifying() { flag = false; }
    } const guard(notifying_);
    notified_objects notified;
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0)
      return false;
    if (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
      last_receive_reported_at_.store(clock::now());
    for (device_listener* l = next(nullptr); l != nullptr; l = next(l))
      l->on_event(event, notified);
    ibv_ack_async_event(&event);
    return true;
  }

  /// When the device reported its latest IBV_EVENT_QP_LAST_WQE_REACHED; `{}` if it never has.
  clock::time_point last_receive_reported_at() const noexcept {
    return last_receive_reported_at_.load();
  }
  /// How often the event was waited for in vain.
  unsigned last_receives_missed() const noexcept { return last_receives_missed_.load(); }
  void last_receive_missed() noexcept { ++last_receives_missed_; }

private:
  // While an event is reported, no listener is removed, but others may be added.
  device_listener* next(device_listener* after) noexcept {
    const std::lock_guard lock(mutex_);
    auto i = after == nullptr ? all_.begin() : std::next(decltype(all_)::s_iterator_to(*after));
    return i == all_.end() ? nullptr : &*i;
  }

  std::recursive_mutex reading_; // recursive: a released listener may lock it
  bool notifying_ = false;
  std::mutex mutex_;
  std::atomic<clock::time_point> last_receive_reported_at_{};
  std::atomic<unsigned> last_receives_missed_{0};
  boost::intrusive::list<device_listener, boost::intrusive::constant_time_size<false>> all_;
};

} // namespace asio_rdma::detail
