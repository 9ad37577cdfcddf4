// SPDX-License-Identifier: BSL-1.0
// The operations of a connection and its records of them.
#pragma once

#include <asio_rdma/detail/connection/message_protocol.hpp>
#include <asio_rdma/detail/leases/lease_table.hpp>
#include <asio_rdma/detail/link/link_pull.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/message.hpp>
#include <asio_rdma/remote_region.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace asio_rdma::detail {

struct message_pull;
struct message_record;
struct remote_record;
struct grant_record;
struct gift_record;

/// The memory of a user's operation: views of memory, registered or not, or one owning buffer.
struct payload {
  struct part {
    const void* data;
    std::size_t bytes;
    std::uint32_t lkey;
    operator const_buffer() const noexcept { return {data, bytes, lkey}; }
  };

  const part* parts = nullptr;
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  bool registered = true; ///< All parts are, so their keys are valid.
  bool too_many = false;
  const registered_buffer* owner = nullptr; ///< If not null, there are no parts.
};

/// A user's operation, in the connection's list, where it is found by its id.
class connection_operation : public operation {
public:
  enum class kind { send, receive, remote, region };
  const kind what;
  bool background = false; ///< A send or receive that does not count as work while it waits.

protected:
  connection_operation(function f, kind k) noexcept : operation(f), what(k) {}
  ~connection_operation() = default;
};

/// A send of one message.
class message_send : public connection_operation {
public:
  explicit message_send(function f) noexcept : connection_operation(f, kind::send) {}

  message_record* record = nullptr;
};

/// A receive of a message or of immediate data.
class message_receive : public connection_operation {
public:
  explicit message_receive(function f) noexcept : connection_operation(f, kind::receive) {}

  /// The wait as the protocol sees it.
  struct wait final : message_in {
    message_receive* op = nullptr;
  };
  wait request;

  message result;
  bool owning = true;         ///< The message goes to `result`; else its bytes go to `targets`.
  ibv_sge* targets = nullptr; ///< An element's key is 0 if it is not registered.
  std::size_t target_count = 0;
  std::uint64_t size = 0;   ///< The size of the message.
  registered_buffer memory; ///< The memory of the targets, if it is a registered buffer.
  buffer_access access;
  bool direct = false;          ///< The device may write to the only target.
  message_pull* pull = nullptr; ///< The pull that writes to the target.
};

/// One or several work requests that read, write or change the peer's memory.
class remote_operation : public connection_operation {
public:
  explicit remote_operation(function f) noexcept : connection_operation(f, kind::remote) {}

  std::size_t count = 0;   ///< Number of work requests.
  std::size_t pending = 0; ///< Work requests that have not completed.
  error_code first;        ///< The first error of a completed work request.
};

/// A wait for memory of the peer, or for the peer to receive a lent or returned region.
class region_operation : public connection_operation {
public:
  explicit region_operation(function f) noexcept : connection_operation(f, kind::region) {}

  enum class purpose { request, renew, receive, lend, give };
  purpose why = purpose::request;

  struct asking final : lease_request {
    region_operation* op = nullptr;
  };
  struct wait final : region_receive {
    region_operation* op = nullptr;
  };
  asking lease;
  wait arrival;
  grant_record* lent = nullptr;
  gift_record* given = nullptr;
  remote_region region; ///< The result; for `renew` and `give` the argument.
  registered_buffer memory;
};

/// A work request on the peer's memory.
struct remote_work {
  ibv_wr_opcode opcode;
  remote_buffer target;
  const remote_region* region;    ///< The region of the target, if there is one.
  const payload* local = nullptr; ///< Null for atomic operations.
  std::optional<std::uint32_t> immediate = {};
  std::uint64_t compare_add = 0, swap = 0;
  std::uint64_t* found = nullptr; ///< Where to put the previous value; null: in the operation.
};

/// A message that is being sent. It outlives the user's operation if the library has to keep the
/// memory.
struct message_record final : message_out {
  static constexpr std::size_t max_views = 3;

  message_send* waiter = nullptr;
  remote_record* write = nullptr; ///< The RDMA WRITE that this message announces.
  registered_buffer memory;       ///< The owned memory, or a copy of unregistered memory.
  buffer_access access;           ///< Access to the user's buffer.
  std::array<ibv_sge, max_views> views{};
  std::uint32_t view_count = 0; ///< If 0, `memory` is sent.
  bool caller_keeps = false;    ///< The views refer to memory of the caller.
  memory_region exposed;        ///< Exposed to the peer for reading.
  std::array<std::byte, frame_transfer::payload_room> small;
  bool is_small = false;
  message_record* next_free = nullptr;
};

/// The RDMA READ of a long message from the sender's memory. It keeps the bytes until an operation
/// takes them.
struct message_pull final : link_pull {
  explicit message_pull(link_impl& link) noexcept : link_pull(link, &message_pull::on_done) {}
  static void on_done(link_impl& link, link_pull& p);

  std::uint32_t slot = 0; ///< The receive that contains the offer.
  bool in_use = false;
  registered_buffer memory;        ///< Of the pool, or of an abandoned operation.
  buffer_access access;            ///< Access to the memory of an abandoned operation.
  message_receive* into = nullptr; ///< The operation whose memory is read into instead.
  bool abandoned = false;
  message_pull* next_free = nullptr;
};

/// A work request on the peer's memory. It outlives the user's operation if the library has to keep
/// the memory.
struct remote_record final : link_transfer {
  static constexpr std::size_t max_views = 4;

  using link_transfer::link_transfer;

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
