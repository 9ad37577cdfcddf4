// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/descriptor_watch.hpp"
#include "verbs/device_listeners.hpp"
#include "verbs/device_watch_service.hpp"
#include "verbs/withheld.hpp"

#include <asio_rdma/device.hpp>

#include <atomic>
#include <fcntl.h>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// Reads a device's asynchronous events on the execution context, and reports events that any
/// context has read to the service.
class device_watch final : public device_listener,
                           public std::enable_shared_from_this<device_watch> {
public:
  device_watch(asio::execution_context& context, device_watch_service& service, const device& d);

  error_code start();
  /// Leaves the descriptor to another watch, which may then call `start`. Does not block.
  void leave();
  /// After the return, the service is not called any more. Waits for an event that is being
  /// reported.
  void stop();
  const device& get_device() const noexcept { return device_; }

  void on_event(const ibv_async_event& event, notified_objects& notified) noexcept override;

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
  device device_;
  scheduler& scheduler_;
  reader reader_;
  std::atomic<bool> queued_{false};
  std::shared_ptr<device_watch> self_; // set while the reader is queued
  descriptor_watch<device_watch, &device_watch::on_readable> channel_;
};

inline device_watch::device_watch(asio::execution_context& context, device_watch_service& service,
                                  const device& d)
    : context_(context),
      service_(service),
      device_(d),
      scheduler_(asio::use_service<scheduler>(context)),
      reader_(*this),
      channel_(*this) {}

inline error_code device_watch::start() {
  const int fd = device_.native_handle()->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int e = channel_.start(context_, fd);
  if (e != 0)
    return system_error_code(e);
  device_.listeners().add(*this);
  return {};
}

inline void device_watch::leave() { channel_.stop(); }

inline void device_watch::stop() {
  leave();
  device_.listeners().remove(*this);
}

inline void device_watch::on_event(const ibv_async_event& event,
                                   notified_objects& notified) noexcept {
  service_.broadcast(*this, event, notified);
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

inline void device_watch::read_events() noexcept {
  queued_.store(false);
  while (device_.listeners().read(device_.native_handle()))
    continue;
  if (device_.is_removed())
    release_withheld(); // verbs may have failed before the kernel had destroyed their objects
}

} // namespace asio_rdma::detail
