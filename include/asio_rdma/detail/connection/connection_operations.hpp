// SPDX-License-Identifier: BSL-1.0
// The operations of a connection.
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/connection/message_in.hpp>
#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/leases/lease_operations.hpp>
#include <asio_rdma/message.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <asio_rdma/remote_region.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace asio_rdma::detail {

struct message_pull;
struct message_record;
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
  bool device_only = false; ///< The CPU must not access the memory of a part, or of `owner`.
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
  bool owning = true; ///< If true, `result` gets the message; otherwise `targets` get its bytes.
  ibv_sge* targets = nullptr; ///< An element's key is 0 if it is not registered.
  std::size_t target_count = 0;
  std::uint64_t size = 0;   ///< The size of the message.
  registered_buffer memory; ///< The memory of the targets, if it is a registered buffer.
  buffer_access access;
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

/// A wait for memory of the peer, for the peer to receive a lent or returned region, or for the end
/// of the peer's access to memory of this side.
class region_operation : public connection_operation {
public:
  explicit region_operation(function f) noexcept : connection_operation(f, kind::region) {}

  enum class purpose { request, renew, receive, lend, give, revoke };
  purpose why = purpose::request;

  struct asking final : lease_request {
    region_operation* op = nullptr;
  };
  struct wait final : region_receive {
    region_operation* op = nullptr;
  };
  struct revoking final : recall_request {
    region_operation* op = nullptr;
  };
  asking lease;
  wait arrival;
  revoking recall;
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

} // namespace asio_rdma::detail
