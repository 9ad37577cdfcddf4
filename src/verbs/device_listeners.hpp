// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/device.hpp>
#include <boost/intrusive/list.hpp>

#include "core/logging.hpp"
#include "verbs/notified_objects.hpp"

#include <atomic>
#include <chrono>
#include <infiniband/verbs.h>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace asio_rdma::detail {

/// A subscriber to the asynchronous events of a device. It is called on any thread.
class device_listener : public boost::intrusive::list_base_hook<
                            boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  /// Must not add or remove listeners.
  virtual void on_event(const ibv_async_event& event, notified_objects& notified) noexcept = 0;
  /// The device is about to be closed. Must not lock a mutex of this library.
  virtual void on_closing() noexcept {}

protected:
  ~device_listener() = default;
};

/// The queue pair that an event is about, or null.
inline const ibv_qp* queue_pair_of(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_PATH_MIG:
  case IBV_EVENT_PATH_MIG_ERR:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    return event.element.qp;
  default:
    return nullptr;
  }
}

/// A table by queue pair, for events. A queue pair may be made at the address of one that was
/// destroyed, whose entry is still there: the later entry counts.
template <class Value>
class by_queue_pair {
public:
  void add(const ibv_qp* qp, Value& v) { all_.insert_or_assign(qp, &v); }
  void remove(const ibv_qp* qp, const Value& v) noexcept {
    const auto found = all_.find(qp);
    if (found != all_.end() && found->second == &v)
      all_.erase(found);
  }
  Value* find(const ibv_qp* qp) const noexcept {
    const auto found = qp == nullptr ? all_.end() : all_.find(qp);
    return found == all_.end() ? nullptr : found->second;
  }
  void clear() noexcept { all_.clear(); }

private:
  std::unordered_map<const ibv_qp*, Value*> all_;
};

/// The subscribers to a device. An event can be read once (ibv_get_async_event(3)), and each
/// execution context that uses the device tries to read it. The reader reports it to all
/// subscribers. They may outlive the device.
class device_listeners : public std::enable_shared_from_this<device_listeners> {
public:
  using clock = std::chrono::steady_clock;

  /// Called once, before the device has another owner.
  void belong_to(std::weak_ptr<device::impl> d) noexcept { device_ = std::move(d); }
  /// Keeps the device open. Null once it is being closed.
  std::shared_ptr<device::impl> opened() const noexcept { return device_.lock(); }
  /// Called when the device is about to be closed: nothing refers to it any more.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    for (device_listener& l : all_)
      l.on_closing();
  }

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
  /// The same for a subscriber to the events of one queue pair.
  void add(const ibv_qp* qp, device_listener& listener) {
    const std::lock_guard lock(mutex_);
    of_queue_pairs_.add(qp, listener);
  }
  void remove(const ibv_qp* qp, device_listener& listener) noexcept {
    const std::lock_guard reading(reading_);
    const std::lock_guard lock(mutex_);
    of_queue_pairs_.remove(qp, listener);
  }
  /// Waits for an event that is being reported, unless this thread reports it.
  void await_report() noexcept { const std::lock_guard reading(reading_); }
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
    log(*context, event.event_type);
    if (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
      last_receive_reported();
    if (device_listener* const l = find(queue_pair_of(event)))
      l->on_event(event, notified);
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
  void last_receive_missed() noexcept {
    ++last_receives_missed_;
    misses_last_receives_.store(true);
  }
  /// Whether it was waited for in vain since the latest report.
  bool misses_last_receives() const noexcept { return misses_last_receives_.load(); }
  /// The same for queue pairs about which the device had reported an error.
  ///@{
  bool misses_after_errors() const noexcept { return misses_after_errors_.load(); }
  void after_error(bool missed) noexcept { misses_after_errors_.store(missed); }
  ///@}

private:
  void last_receive_reported() noexcept {
    last_receive_reported_at_.store(clock::now());
    misses_last_receives_.store(false);
  }
  static void log(const ibv_context& context, ibv_event_type type) noexcept {
    log_severity s = log_severity::warning;
    switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      s = log_severity::error;
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
      s = log_severity::debug;
      break;
    case IBV_EVENT_PORT_ACTIVE:
      s = log_severity::info;
      break;
    default:
      break;
    }
    if (logs(s)) [[unlikely]]
      write_log({.severity = s, .event = log_event::device}, "device %s: %s",
                ibv_get_device_name(context.device), ibv_event_type_str(type));
  }

  // While an event is reported, no listener is removed, but others may be added.
  device_listener* next(device_listener* after) noexcept {
    const std::lock_guard lock(mutex_);
    auto i = after == nullptr ? all_.begin() : std::next(decltype(all_)::s_iterator_to(*after));
    return i == all_.end() ? nullptr : &*i;
  }
  device_listener* find(const ibv_qp* qp) noexcept {
    const std::lock_guard lock(mutex_);
    return of_queue_pairs_.find(qp);
  }

  std::weak_ptr<device::impl> device_;
  std::recursive_mutex reading_; // recursive: a released listener may lock it
  bool notifying_ = false;
  std::mutex mutex_;
  std::atomic<clock::time_point> last_receive_reported_at_{};
  std::atomic<unsigned> last_receives_missed_{0};
  std::atomic<bool> misses_last_receives_{false}, misses_after_errors_{false};
  boost::intrusive::list<device_listener, boost::intrusive::constant_time_size<false>> all_;
  by_queue_pair<device_listener> of_queue_pairs_;
};

} // namespace asio_rdma::detail
