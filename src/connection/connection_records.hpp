// SPDX-License-Identifier: BSL-1.0
// A connection's records of its operations.
#pragma once

#include <asio_rdma/detail/connection/connection_operations.hpp>
#include <asio_rdma/detail/link/offered.hpp>

#include "connection/message_protocol.hpp"
#include "link/link_pull.hpp"
#include "link/link_transfer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace asio_rdma::detail {

class connection_impl;
struct remote_record;

/// A message that is being sent. It outlives the user's operation if the library has to keep the
/// memory.
struct message_record final : message_out, offered {
  static constexpr std::size_t max_views = 3;

  message_send* waiter = nullptr;
  remote_record* write = nullptr; ///< The RDMA WRITE that this message announces.
  registered_buffer memory;       ///< The owned memory, or a copy of unregistered memory.
  buffer_access access;           ///< Access to the user's buffer.
  std::array<ibv_sge, max_views> views{};
  std::uint32_t view_count = 0; ///< If 0, `memory` is sent.
  bool caller_keeps = false;    ///< The views refer to memory of the caller.
  std::array<std::byte, frame_transfer::payload_room> small;
  bool is_small = false;
  message_record* next_free = nullptr;
};

/// The RDMA READ of a long message from the sender's memory. It keeps the bytes until an operation
/// takes them.
struct message_pull final : link_pull {
  explicit message_pull(connection_impl& connection) noexcept;

  connection_impl& owner;
  std::uint32_t slot = 0; ///< The receive that contains the offer.
  bool in_use = false;
  registered_buffer memory;        ///< Of the pool, or of an abandoned operation.
  buffer_access access;            ///< Access to the memory of an abandoned operation.
  message_receive* into = nullptr; ///< The operation whose memory is read into instead.
  bool abandoned = false;
  message_pull* next_free = nullptr;
};

/// The bytes of a `remote_work` that one work request transfers.
struct remote_portion {
  std::uint64_t at, bytes;
};

/// A work request on the peer's memory. It outlives the user's operation if the library has to keep
/// the memory.
struct remote_record final : link_transfer {
  static constexpr std::size_t max_views = 4;

  explicit remote_record(connection_impl& connection) noexcept;

  connection_impl& owner;
  remote_operation* waiter = nullptr;
  buffer_access access;                   ///< Access to the user's buffer.
  registered_buffer memory;               ///< Substitute for unregistered memory.
  std::array<ibv_sge, max_views> targets; ///< Where to copy the bytes that were read into `memory`.
  std::size_t target_count = 0;
  bool caller_keeps = false;        ///< The elements refer to memory of the caller.
  message_record* notice = nullptr; ///< Until the notice has been sent.
  bool under_way = false;
  error_code result;
  std::uint64_t* found = nullptr; ///< Where to put the previous value of an atomic operation.
  remote_record* next = nullptr;  ///< In a chain that is being built.
  remote_record* next_free = nullptr;
};

} // namespace asio_rdma::detail
