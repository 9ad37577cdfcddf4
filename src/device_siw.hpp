// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

namespace asio_rdma::detail {

/// siw's kernel driver gives out the offsets by which a program maps its queues in ascending order,
/// and calls one of them invalid, 0x90000 (SIW_INVAL_UOBJ_KEY of <rdma/siw-abi.h>). When that one
/// has its turn libsiw gives the queue up, it is free again, and nothing can be created any more:
/// after some 70 queue pairs of a device that was opened. This occupies the offset from the middle
/// of a completion queue.
///
/// Null if the device is another, or if it could not be done. Otherwise the caller destroys the
/// completion queue before the context.
ibv_cq* occupy_invalid_offset(ibv_context* context, const ibv_device_attr& attributes);

} // namespace asio_rdma::detail
