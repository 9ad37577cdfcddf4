// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "streams/stream_protocol.hpp"

namespace asio_rdma::detail {

/// The nodes of the lists of `stream_protocol`.
///@{
inline stream_write& as_write(frame_operation& op) { return static_cast<stream_write&>(op); }
inline stream_read& as_read(frame_operation& op) { return static_cast<stream_read&>(op); }
inline stream_block& as_block(frame_operation& op) { return static_cast<stream_block&>(op); }
///@}

/// The result of a wait for a state, which succeeds when nothing more can arrive, as poll(2)
/// reports it.
inline error_code of_wait(const error_code& ec) {
  return ec == asio::error::operation_aborted ? ec : error_code();
}

/// The error that an operation reports. If the device still uses the buffer, report that error
/// first: the caller must not reuse the buffer.
inline error_code worse(const error_code& first, const error_code& second) {
  return second == error::device_keeps_memory || !first ? second : first;
}

} // namespace asio_rdma::detail
