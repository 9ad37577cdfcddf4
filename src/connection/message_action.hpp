// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>

#include <cstdint>
#include <limits>

namespace asio_rdma::detail {

class message_in;
class message_out;

struct message_options {
  std::uint64_t limit = std::uint64_t(1) << 30; ///< Bytes of an offered message, at most.
  std::uint32_t offers = 16; ///< Messages that are offered at a time, each with a key of its own.
  std::uint32_t pulls = 4;   ///< Messages that are read at a time, at least one.
  /// Bytes of messages that are read into the driver's memory ahead of their receives. The first
  /// message may be read besides.
  std::uint64_t pull_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint32_t gather = 0; ///< Bytes of small messages that share a frame; 0: none do.
  std::uint32_t small = 0;  ///< The longest message that shares a frame.
};

/// The next step of the driver.
struct message_action {
  enum class kind {
    none,
    prepare,   ///< Make a key for reading exactly the buffers of `send`; then call `prepared` or
               ///< `fail_send`.
    pull,      ///< Read `memory`; then call `pulled(slot)` or `refuse(slot)`. Or `put_off(slot)`.
    drop,      ///< Discard the bytes of the `pull` of `slot`, also if it is still in progress.
    sent,      ///< `send` has completed; end its key first, if it has one.
    received,  ///< `receive` has completed.
    await_idle ///< Call `on_idle` once the handlers that are ready have run.
  };
  kind what = kind::none;
  message_out* send = nullptr;
  /// For `received`: the operation. For `pull`: the operation that waits for the message. It has
  /// room, so its own memory may be used (call `read_into`).
  message_in* receive = nullptr;
  std::uint32_t slot = 0;
  remote_buffer memory;
};

} // namespace asio_rdma::detail
