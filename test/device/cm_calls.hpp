// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <rdma/rdma_cma.h>

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
  establish
};

/// Called before each of them, by the thread that makes it; null for an id that is to be created.
/// The call then fails with the errno value that is returned, unless that is 0. To be changed while
/// nobody makes any.
extern std::function<int(cm_call, const rdma_cm_id*)> before_cm_call;

} // namespace test
