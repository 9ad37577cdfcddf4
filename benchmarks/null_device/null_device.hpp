// SPDX-License-Identifier: BSL-1.0
//
// A device for counting instructions, allocations and calls, and for nothing else: work completes
// inside ibv_post_send, no byte moves, no peer exists, nothing is checked and receives complete
// only by a flush. A test of behaviour on it would prove nothing.
//
// An executable that links the target asio_rdma_null_device defines the ibv_* functions itself and
// so sees one device, null0, with one active RoCE port, in place of the machine's. rdma_cm does not
// know it. Everything may be used from one thread at a time. Memory is allocated when objects are
// created, never when work is posted or polled.
#pragma once

#include <cstdint>

namespace null_device {

struct counters {
  std::uint64_t post_send_calls = 0;
  std::uint64_t send_requests = 0;
  std::uint64_t post_recv_calls = 0;
  std::uint64_t receive_requests = 0;
  std::uint64_t poll_calls = 0;
  std::uint64_t completions = 0;
  std::uint64_t arm_calls = 0;
  std::uint64_t channel_events = 0;
  std::uint64_t registrations = 0;
};

// Since the program began; the caller may set them to zero.
counters& counts();

} // namespace null_device
