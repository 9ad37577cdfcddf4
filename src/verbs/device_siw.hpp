// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

namespace asio_rdma::detail {

/// Occupies an offset that siw could not use, from the middle of a completion queue.
///
/// siw's kernel driver assigns the offsets by which a program maps its queues in ascending order,
/// but treats one of them as invalid: 0x90000 (SIW_INVAL_UOBJ_KEY of <rdma/siw-abi.h>). When a
/// queue gets that offset, libsiw destroys the queue, the offset is free again, and no queue can be
/// created any more. That happens after about 70 queue pairs of one opened device.
///
/// Returns null if the device is another one, or on failure. Otherwise the caller destroys the
/// completion queue before the context.
ibv_cq* occupy_invalid_offset(ibv_context* context, const ibv_device_attr& attributes);

} // namespace asio_rdma::detail
