// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/link/frame_operation.hpp>
#include <asio_rdma/error.hpp>

#include <cstdint>
#include <optional>

namespace asio_rdma::detail {

/// A wait for the next message, or for the next immediate data of an RDMA WRITE.
class message_in : public frame_operation {
public:
  enum class kind { message, written };
  enum class place {
    none,   ///< The message has no payload.
    slot,   ///< In receive `slot`, `at` bytes behind the header; if it is the `last` message there,
            ///< call `frame_link::release` after use.
    pulled, ///< In the memory that the driver chose for the `pull` of `slot`.
    direct  ///< In the memory of the operation.
  };

  kind what = kind::message;
  /// A longer message is not taken and stays first. The result is `message_size` with its length.
  std::uint64_t capacity = static_cast<std::uint64_t>(-1);
  /// Only the device may write to the operation's memory. A message with payload that was not read
  /// into it stays first. The result is `operation_not_supported` with the message's length.
  bool device_only = false;
  /// A long message is read into the operation's memory, so it needs none of the driver's.
  bool direct = false;

  // The result.
  error_code ec;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> immediate;
  place where = place::none;
  std::uint32_t slot = 0;
  std::uint32_t at = 0;
  bool last = true;

protected:
  ~message_in() = default;

private:
  friend class message_inbox; // only the inbox changes the state of a wait
  bool waiting_ = false;
  bool pinned_ = false; // its message is being read, or was read, into its own memory
  bool busy_ = false;   // another wait's message is being read into its memory
  bool left_ = false;   // it only waits for the end of `busy_`
};

} // namespace asio_rdma::detail
