// SPDX-License-Identifier: BSL-1.0
//
// A device for counting instructions, allocations and calls only. Work completes inside
// ibv_post_send, and nothing is checked. If a queue pair is connected to another one, bytes are
// copied and the other's receives complete; a message without a posted receive ends the program. If
// it is connected to itself, no byte moves and receives complete only by a flush. A test of
// behaviour on this device would prove nothing.
//
// An executable that links the target asio_rdma_null_device defines the ibv_* functions itself. It
// sees one device, null0, with one active RoCE port, instead of the machine's devices. rdma_cm does
// not know null0. One thread at a time may use the device and its objects. Memory is allocated when
// objects are created, never when work is posted or polled.
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

// Counts since the program began; the caller may set them to zero.
counters& counts();

} // namespace null_device
