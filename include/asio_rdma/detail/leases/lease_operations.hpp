// SPDX-License-Identifier: BSL-1.0
// The operations of leases, from which a connection derives its operations.
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/link/frame_operation.hpp>
#include <asio_rdma/detail/link/remote_rights.hpp>
#include <asio_rdma/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace asio_rdma::detail {

/// Memory of the peer that this side may access.
struct remote_lease {
  std::uint32_t id = 0; ///< This side's number. The owner may reuse its own number after the lease
                        ///< has ended.
  remote_buffer memory;
  remote_rights rights = remote_rights::none;
  protocol_clock::time_point until = protocol_clock::time_point::max();
};

/// A request to the owner of the memory, or a lease that is handed back. The driver derives its
/// operation from it.
class lease_request : public frame_operation {
public:
  enum class kind {
    memory, ///< Requests `bytes` bytes with `rights` for `lease`; sets `result`.
    renew,  ///< Renews lease `id` for `lease`; sets `result`.
    give    ///< Hands lease `id` back to its owner, who receives the memory as a region.
  };

  kind what = kind::memory;
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
  remote_rights rights = remote_rights::none;
  std::chrono::microseconds lease{}; ///< 0 for the owner's default.
  std::uint64_t tag = 0;             ///< Of a lease that is handed back, for its owner.

  error_code ec; ///< The result: a refusal as by `to_error`, `lease_expired` and others.
  remote_lease result;

protected:
  ~lease_request() = default;

private:
  friend class lease_table; // only the table changes the state of a request
  enum class state { idle, queued, asked, done };
  state state_ = state::idle;
  std::uint32_t grant_ = 0; // the owner's number of lease `id`
  protocol_clock::time_point asked_;
};

/// A recall of grants by their owner, which lets the peer finish. The driver derives its operation
/// from it.
class recall_request : public frame_operation {
public:
  std::vector<std::uint32_t> grants; ///< The owner's numbers; those that have not ended yet.

  error_code ec;               ///< Why the connection or a key has failed, if either has.
  std::size_t count = 0;       ///< The grants that had not ended when the recall began.
  std::size_t unconfirmed = 0; ///< Those of them that ended before the peer had confirmed.

protected:
  ~recall_request() = default;

private:
  friend class grant_table; // only the table knows whether the operation waits
  bool waiting_ = false;
};

/// A wait for the next region from the peer.
class region_receive : public frame_operation {
public:
  error_code ec;
  bool returned = false; ///< The region is memory of this side that was handed back; otherwise it
                         ///< is lent by the peer.
  std::uint32_t id = 0;  ///< The grant in this side's `grant_table`, or the lease.
  std::uint64_t tag = 0; ///< The sender's.

protected:
  ~region_receive() = default;

private:
  friend class region_inbox; // only the inbox knows whether the operation waits
  bool waiting_ = false;
};

} // namespace asio_rdma::detail
