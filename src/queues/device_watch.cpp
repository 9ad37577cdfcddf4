// SPDX-License-Identifier: BSL-1.0
#include "queues/device_watch.hpp"

#include <fcntl.h>
#include <utility>

namespace asio_rdma::detail {

device_watch::device_watch(completion_service& service, const device& d)
    : service_(service),
      device_(d),
      scheduler_(asio::use_service<scheduler>(service.context())),
      reader_(*this),
      channel_(*this) {}

error_code device_watch::start() {
  const int fd = device_.native_handle()->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int e = channel_.start(service_.context(), fd);
  if (e != 0)
    return system_error_code(e);
  device_.listeners().add(*this);
  return {};
}

void device_watch::leave() { channel_.stop(); }

void device_watch::stop() {
  leave();
  device_.listeners().remove(*this);
}

void device_watch::on_event(const ibv_async_event& event, heard& by) noexcept {
  service_.broadcast(device_, event, by);
}

void device_watch::on_readable() {
  if (queued_.exchange(true))
    return;
  self_ = shared_from_this();
  scheduler_.post_immediate_completion(&reader_, false);
}

void device_watch::reader::execute(void* owner, scheduled_operation* base, const error_code&,
                                   std::size_t) {
  device_watch& watch = static_cast<reader*>(base)->watch;
  const auto keep = std::move(watch.self_);
  if (owner != nullptr)
    watch.read_events();
}

void device_watch::read_events() noexcept {
  queued_.store(false);
  while (device_.listeners().read(device_.native_handle()))
    continue;
}

} // namespace asio_rdma::detail
