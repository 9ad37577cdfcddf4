// SPDX-License-Identifier: BSL-1.0
// What users start on a connection, and what the connection keeps for it.
#pragma once

#include <asio_rdma/detail/lease_table.hpp>
#include <asio_rdma/detail/link_pull.hpp>
#include <asio_rdma/detail/message_protocol.hpp>
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

/// What a user wants sent, written or read into: views of memory, registered or not, or one owning
/// buffer.
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
  bool registered = true; ///< All the parts, so lkeys hold.
  bool too_many = false;
  const registered_buffer* owner = nullptr; ///< Then there are no parts.
};

/// A user's operation, in the connection's list to be found by its id.
class connection_operation : public operation {
public:
  enum class kind { send, receive, remote, region };
  const kind what;
  bool background = false; ///< Of a send or receive: no work of the context as long as it waits.

protected:
  connection_operation(function f, kind k) noexcept : operation(f), what(k) {}
  ~connection_operation() = default;
};

/// Waits for a message of his to be sent.
class message_send : public connection_operation {
public:
  explicit message_send(function f) noexcept : connection_operation(f, kind::send) {}

  message_record* record = nullptr;
};

/// Waits for a message or for immediate data.
class message_receive : public connection_operation {
public:
  explicit message_receive(function f) noexcept : connection_operation(f, kind::receive) {}

  /// As the protocol knows it.
  struct wait final : message_in {
    message_receive* op = nullptr;
  };
  wait request;

  message result;
  bool owning = true;         ///< Gives `result`; else the bytes go to `targets`.
  ibv_sge* targets = nullptr; ///< The key of one that is not registered is 0.
  std::size_t target_count = 0;
  std::uint64_t size = 0;   ///< Of the message.
  registered_buffer memory; ///< That the targets are, if they are one's.
  buffer_access access;
  bool direct = false;          ///< The device may write to the target, which is one.
  message_pull* pull = nullptr; ///< While it does.
};

/// Waits for memory of the peer to be read, written or changed, in one work request or in several.
class remote_operation : public connection_operation {
public:
  explicit remote_operation(function f) noexcept : connection_operation(f, kind::remote) {}

  std::size_t count = 0;   ///< Work requests.
  std::size_t pending = 0; ///< Those that have not ended.
  error_code first;        ///< The first error of those that have.
};

/// Waits for memory of the peer, or for the peer to have heard of memory.
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
  remote_region region; ///< The result; the argument of `renew` and `give`.
  registered_buffer memory;
};

/// What is to be done to memory of the peer.
struct remote_work {
  ibv_wr_opcode opcode;
  remote_buffer target;
  const remote_region* region;    ///< Whose memory the target is, if it is one's.
  const payload* local = nullptr; ///< Atomic operations have none.
  std::optional<std::uint32_t> immediate = {};
  std::uint64_t compare_add = 0, swap = 0;
  std::uint64_t* found = nullptr; ///< What an atomic operation found; else in the operation.
};

/// A message on its way. The protocol knows it, and it outlives the user's operation where the
/// memory is the library's to keep.
struct message_record final : message_out {
  static constexpr std::size_t max_views = 3;

  message_send* waiter = nullptr;
  remote_record* write = nullptr; ///< Whose notice it is.
  registered_buffer memory;       ///< Owned, or a copy of what was not registered.
  buffer_access access;           ///< To the user's own buffer.
  std::array<ibv_sge, max_views> views{};
  std::uint32_t view_count = 0; ///< Else the memory is what is sent.
  bool caller_keeps = false;    ///< The views are of the caller's memory.
  memory_region exposed;        ///< For the peer to read.
  std::array<std::byte, frame_transfer::payload_room> small;
  bool is_small = false;
  message_record* next_free = nullptr;
};

/// The reading of a long message from its sender's memory. It keeps what was read until somebody
/// gets it.
struct message_pull final : link_pull {
  explicit message_pull(link_impl& link) noexcept : link_pull(link, &message_pull::on_done) {}
  static void on_done(link_impl& link, link_pull& p);

  std::uint32_t slot = 0; ///< Of the message.
  bool in_use = false;
  registered_buffer memory;        ///< The pool's, or an operation's that was abandoned.
  buffer_access access;            ///< To the latter.
  message_receive* into = nullptr; ///< Whose memory it is read to instead.
  bool abandoned = false;
  message_pull* next_free = nullptr;
};

/// An operation on memory of the peer. It outlives the user's operation where the memory is the
/// library's to keep.
struct remote_record final : link_transfer {
  static constexpr std::size_t max_views = 4;

  using link_transfer::link_transfer;

  remote_operation* waiter = nullptr;
  buffer_access access;                   ///< To the user's own buffer.
  registered_buffer memory;               ///< For what is not registered.
  std::array<ibv_sge, max_views> targets; ///< Where to copy what was read to `memory`.
  std::size_t target_count = 0;
  bool caller_keeps = false;        ///< The elements are of the caller's memory.
  message_record* notice = nullptr; ///< Until it is sent.
  bool under_way = false;
  error_code result;
  std::uint64_t* found = nullptr; ///< Where to put what an atomic operation found.
  remote_record* next = nullptr;  ///< In a chain that is being made.
  remote_record* next_free = nullptr;
};

} // namespace asio_rdma::detail
