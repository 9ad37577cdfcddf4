// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <rdma/rdma_cma.h>

#include <functional>

namespace test {

/// The calls of librdmacm that take an attempt to connect further.
enum class cm_call { resolve_address, resolve_route, init_queue_pair, connect, accept, establish };

/// Called before each of them, by the thread that makes it. To be changed while nobody makes any.
extern std::function<void(cm_call, const rdma_cm_id*)> before_cm_call;

} // namespace test
