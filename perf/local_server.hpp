// SPDX-License-Identifier: BSL-1.0
// The server of a run on one machine.
#pragma once

#include "options.hpp"

#include <sys/types.h>

namespace perf {

/// A process that serves this one at a port of the loopback interface, until the object is
/// destroyed. The measurements themselves use the device's address.
class local_server {
public:
  /// Call it before any device is opened. Throws `system_error`.
  explicit local_server(const options& o);
  local_server(const local_server&) = delete;
  ~local_server();

  const place& where() const noexcept { return where_; }

private:
  place where_;
  pid_t process_ = 0;
};

} // namespace perf
