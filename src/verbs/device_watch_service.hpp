// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "verbs/notified_objects.hpp"

#include <infiniband/verbs.h>

namespace asio_rdma::detail {

class device_watch;

/// The service of an execution context that a `device_watch` reports to.
class device_watch_service {
public:
  /// Reports an event to the objects of the device, and adds them to `notified`, which keeps them
  /// alive.
  virtual void broadcast(const device_watch& from, const ibv_async_event& event,
                         notified_objects& notified) noexcept = 0;

protected:
  ~device_watch_service() = default;
};

} // namespace asio_rdma::detail
