// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <rdma/rdma_cma.h>

#include <atomic>
#include <functional>

namespace test {

/// The calls of librdmacm that take an attempt to connect further.
enum class cm_call {
  create_id,
  resolve_address,
  resolve_route,
  init_queue_pair,
  connect,
  accept,
  establish,
  migrate
};

/// Called before each of them, by the thread that makes it; null for an id that is to be created.
/// The call then fails with the errno value that is returned, unless that is 0. To be changed while
/// nobody makes any.
extern std::function<int(cm_call, const rdma_cm_id*)> before_cm_call;

/// Changes what rdma_connect(3) and rdma_accept(3) tell the peer. Null for no change.
extern std::function<void(cm_call, rdma_conn_param&)> edit_parameters;

/// Called before rdma_destroy_id(3). Null for no call.
extern std::function<void(const rdma_cm_id*)> before_destruction;

/// The events that rdma_get_cm_event(3) has given.
extern std::atomic<int> events_read;

/// Waits until the kernel knows that the peer of the id has given up: the id has no next state then
/// (EINVAL). False if that does not come, as on iWARP. The call is not announced.
bool wait_until_given_up(rdma_cm_id* id);

} // namespace test
