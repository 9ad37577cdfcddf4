// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/descriptor_watch.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/device_listeners.hpp"
#include "verbs/device_watch_service.hpp"
#include "verbs/withheld.hpp"

#include <asio_rdma/device.hpp>

#include <atomic>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <utility>

namespace asio_rdma::detail {

/// Reads a device's asynchronous events on the execution context, and reports events that any
/// context has read to the service. It does not keep the device open.
///
/// While the context has no object of the device, the watch reads no events, but stays until the
/// device is closed. The program may have closed all its objects while the device still keeps
/// memory of them. When the removal of the device is complete, the watch releases that memory.
class device_watch final : public device_listener,
                           public std::enable_shared_from_this<device_watch> {
public:
  device_watch(asio::execution_context& context, device_watch_service& service, const device& d);

  error_code start();
  /// The context has no object of the device any more. False if the watch must stop, because only
  /// threads of the context may use its reactor: any thread may close the device.
  bool rest() noexcept;
  /// Waits for an event that is being reported: its reader has references to former members.
  void await_report() noexcept { listeners_->await_report(); }
  /// The context has one again.
  void resume();
  /// Leaves the descriptor to another watch, which may then call `start`. Does not block. Only
  /// while the device is open.
  void leave() { channel_.stop(); }
  /// After the return, the service is not called any more. Waits for an event that is being
  /// reported.
  void stop();
  bool is_of(const device& d) const noexcept { return &d.listeners() == listeners_.get(); }
  /// Whether the device was closed.
  bool is_over() const noexcept { return over_.load(); }
  int descriptor() const noexcept { return descriptor_; }

  void on_event(const ibv_async_event& event, notified_objects& notified) noexcept override;
  void on_closing() noexcept override;

private:
  struct reader final : scheduled_operation {
    explicit reader(device_watch& w) noexcept : scheduled_operation(&reader::execute), watch(w) {}
    static void execute(void* owner, scheduled_operation* base, const error_code&, std::size_t);

    device_watch& watch;
  };

  void on_readable();
  void read_events() noexcept;

  asio::execution_context& context_;
  device_watch_service& service_;
  ibv_context* const verbs_; // only while the device is open
  const int descriptor_;
  const std::shared_ptr<device_listeners> listeners_;
  scheduler& scheduler_;
  reader reader_;
  const bool may_rest_;
  std::atomic<bool> queued_{false}, resting_{false}, over_{false};
  std::shared_ptr<device_watch> self_; // set while the reader is queued
  descriptor_watch<device_watch, &device_watch::on_readable> channel_;
};

inline device_watch::device_watch(asio::execution_context& context, device_watch_service& service,
                                  const device& d)
    : context_(context),
      service_(service),
      verbs_(d.native_handle()),
      descriptor_(verbs_->async_fd),
      listeners_(d.listeners().shared_from_this()),
      scheduler_(asio::use_service<scheduler>(context)),
      reader_(*this),
      may_rest_(may_be_used_by_others(scheduler_)),
      channel_(*this) {}

inline error_code device_watch::start() {
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) | O_NONBLOCK);
  const int e = channel_.start(context_, descriptor_);
  if (e != 0)
    return system_error_code(e);
  listeners_->add(*this);
  return {};
}

inline bool device_watch::rest() noexcept {
  if (!may_rest_)
    return false;
  resting_.store(true);
  return true;
}

// An event that the watch has not read makes no further edge of the descriptor.
inline void device_watch::resume() {
  if (!resting_.exchange(false))
    return;
  pollfd waiting{descriptor_, POLLIN, 0};
  if (::poll(&waiting, 1, 0) != 0)
    on_readable();
}

// Another thread may be closing the device, until this leaves the list.
inline void device_watch::stop() {
  listeners_->remove(*this);
  channel_.stop();
}

inline void device_watch::on_event(const ibv_async_event& event,
                                   notified_objects& notified) noexcept {
  service_.broadcast(*this, event, notified);
}

inline void device_watch::on_closing() noexcept {
  channel_.stop();
  over_.store(true);
}

inline void device_watch::on_readable() {
  if (queued_.exchange(true))
    return;
  self_ = shared_from_this();
  scheduler_.post_immediate_completion(&reader_, false);
}

inline void device_watch::reader::execute(void* owner, scheduled_operation* base, const error_code&,
                                          std::size_t) {
  device_watch& watch = static_cast<reader*>(base)->watch;
  const auto keep = std::move(watch.self_);
  if (owner != nullptr)
    watch.read_events();
}

// The last owners of the device may be withheld objects.
inline void device_watch::read_events() noexcept {
  queued_.store(false);
  const std::shared_ptr<device::impl> opened = listeners_->opened();
  if (!opened)
    return;
  while (!resting_.load() && listeners_->read(verbs_))
    continue;
  if (is_removed(*opened))
    release_withheld(); // verbs may have failed before the kernel had destroyed their objects
}

} // namespace asio_rdma::detail
