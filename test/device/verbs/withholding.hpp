// SPDX-License-Identifier: BSL-1.0
//
// Helpers for objects that a device refuses to release.
#pragma once

#include "device/connection/connection_support.hpp"
#include "interposer/failing_allocation.hpp"
#include "interposer/faults.hpp"

#include <catch.hpp>

#include <new>

namespace test {

inline connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  return o;
}

/// From now on the device reports no completion of the queue pair and refuses to destroy it, so it
/// keeps the memory of posted work requests.
inline void keep_queue_pair(faults::injector& device, const queue_pair& qp) {
  const std::uint32_t number = qp.native_handle()->qp_num;
  device.hold_completions({nullptr, number});
  device.fail(faults::call::destroy_qp, EBUSY, {1, faults::forever}, number);
}

/// Calls `end` while the n-th allocation fails, and expects that nothing comes of it. False if
/// there are not so many.
template <class Function>
bool ends_without(std::size_t n, Function end) {
  bool failed = false, thrown = false;
  {
    const failing_allocation failing(n);
    try {
      end();
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    failed = failing.failed();
  }
  CHECK_FALSE(thrown);
  return failed;
}

} // namespace test
