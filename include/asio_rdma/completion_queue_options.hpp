// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// How a completion queue awaits completions.
enum class completion_mode {
  event,    ///< Sleeps in the execution context until the device raises an event.
  adaptive, ///< After work, polls for a while (`spin`), then as `event`.
  busy,     ///< Polls as long as an operation is outstanding; never sleeps. For `io_context::run`:
            ///< `io_context::poll` does not return as long.
  manual    ///< Only `completion_queue::poll()` polls.
};

struct completion_queue_options {
  completion_mode mode = completion_mode::event;
  std::uint32_t entries = 4096;       ///< At least; limited by the device (max_cqe).
  std::chrono::microseconds spin{50}; ///< Mode `adaptive`: how long to poll without a completion.
  int completion_vector = 0;          ///< ibv_create_cq(3)
};

/// Counters of a completion queue.
struct completion_counters {
  std::uint64_t polls = 0;       ///< Calls of ibv_poll_cq.
  std::uint64_t arms = 0;        ///< Calls of ibv_req_notify_cq.
  std::uint64_t events = 0;      ///< Events read from the completion channel.
  std::uint64_t completions = 0; ///< Work completions polled.
};

} // namespace asio_rdma
