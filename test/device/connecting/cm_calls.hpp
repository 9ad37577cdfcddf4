// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <rdma/rdma_cma.h>

#include <atomic>
#include <functional>

namespace test {

/// The calls of librdmacm that advance an attempt to connect.
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

/// Called before each of the calls, on the same thread; the id is null if it is yet to be created.
/// If a value other than 0 is returned, the call fails with this errno value. Change it only while
/// no thread makes such a call.
extern std::function<int(cm_call, const rdma_cm_id*)> before_cm_call;

/// Changes the parameters that rdma_connect(3) and rdma_accept(3) send to the peer. Null for no
/// change.
extern std::function<void(cm_call, rdma_conn_param&)> edit_parameters;

/// Called before rdma_destroy_id(3). Null for no call.
extern std::function<void(const rdma_cm_id*)> before_destruction;

/// The number of events that rdma_get_cm_event(3) has returned.
extern std::atomic<int> events_read;

/// Waits until the kernel knows that the peer of the id has given up: the id then has no next state
/// (EINVAL). False if the kernel does not learn that, as on iWARP. `before_cm_call` is not called.
bool wait_until_given_up(rdma_cm_id* id);

} // namespace test
