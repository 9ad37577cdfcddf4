// SPDX-License-Identifier: BSL-1.0
#include "device_watch.hpp"

#include <fcntl.h>

namespace asio_rdma::detail {

device_watch::device_watch(completion_service& service, const device& d)
    : device_(d),
      listener_(std::make_shared<listener>(service, d)),
      scheduler_(asio::use_service<scheduler>(service.context())),
      reader_(*this),
      channel_(*this) {}

error_code device_watch::start() {
  const int fd = device_.native_handle()->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int e = channel_.start(listener_->service->context(), fd);
  if (e != 0)
    return system_error_code(e);
  device_.listeners().add(listener_);
  return {};
}

void device_watch::stop() {
  channel_.stop();
  device_.listeners().remove(listener_.get());
  const std::lock_guard lock(listener_->mutex);
  listener_->service = nullptr;
}

void device_watch::on_readable() {
  if (!queued_.exchange(true))
    scheduler_.post_immediate_completion(&reader_, true);
}

void device_watch::reader::execute(void* owner, scheduled_operation* base, const error_code&,
                                   std::size_t) {
  if (owner != nullptr)
    static_cast<reader*>(base)->watch.read_events();
}

// An event is acknowledged only after everybody has heard of it: until then the object that it
// names cannot be destroyed (ibv_get_async_event(3)).
void device_watch::read_events() {
  queued_.store(false);
  ibv_async_event event;
  while (ibv_get_async_event(device_.native_handle(), &event) == 0) {
    device_.listeners().tell(event);
    ibv_ack_async_event(&event);
  }
}

} // namespace asio_rdma::detail
