// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/global_memory.hpp>

#include "device/connecting/cm_support.hpp"

#include <cstdint>

namespace test {

constexpr std::uint64_t segment_bytes = 1 << 20;
constexpr node_id host_id = 40, guest_id = 7;

/// Two nodes of one process, on one context: `host` hosts a segment and listens, `guest` has
/// joined.
struct world {
  explicit world(const global_memory_options& of_guest = {},
                 const global_memory_options& of_host = {})
      : host(io, pool, host_id, of_host), guest(io, pool, guest_id, of_guest) {
    host.host(segment_bytes);
    host.listen({device_address(dev), 0});
    const outcome<node_id> joined = join(guest);
    if (joined.ec)
      throw system_error(joined.ec, "join");
  }

  outcome<node_id> join(global_memory& who) {
    outcome<node_id> joined;
    who.async_join(host.local_endpoint(), joined.handler());
    until([&] { return joined.done(); });
    return joined;
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  /// The result of an operation: `ask<T>([&](auto h) { m.async_read(p, h); })`.
  template <class T, class Start>
  outcome<T> ask(Start&& start) {
    outcome<T> result;
    start(result.handler());
    until([&] { return result.done(); });
    return result;
  }
  template <class T>
  outcome<remote_value_t<T>> read(remote_ptr<T> p) {
    return ask<remote_value_t<T>>([&](auto h) { guest.async_read(p, h); });
  }
  template <class T>
  error_code write(remote_ptr<T> p, const remote_value_t<T>& value) {
    return ask<void>([&](auto h) { guest.async_write(p, value, h); }).ec;
  }
  template <class T>
  remote_ptr<T> make(std::uint64_t count = 1) {
    const auto made =
        ask<remote_ptr<T>>([&](auto h) { guest.template async_allocate<T>(host_id, 0, count, h); });
    if (made.ec)
      throw system_error(made.ec, "allocate");
    return made.value;
  }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  asio::io_context io{1};
  global_memory host;
  global_memory guest;
};

} // namespace test
