// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/memory_region.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

namespace asio_rdma {
namespace detail {

class connection_impl;

/// A lease of a connection. What the handles share: the last one to go releases it.
struct lease_handle {
  lease_handle(std::weak_ptr<connection_impl> c, std::uint32_t i) noexcept
      : connection(std::move(c)), id(i) {}
  lease_handle(const lease_handle&) = delete;
  ~lease_handle();

  const std::weak_ptr<connection_impl> connection;
  const std::uint32_t id;
};

} // namespace detail

/// Memory of the peer of a connection, or a slice of it, that this side may use until its lease
/// ends. Copies and slices share the lease; with the last of them the memory is released. Safe from
/// any thread; one object is unsafe while it is assigned.
///
/// An operation is checked here before it is posted: `error::lease_expired` after the deadline, or
/// when the region was handed back; `error::lease_revoked`; `error::rights_refused`;
/// `error::remote_range`; `invalid_argument` for a region of another connection. The connection
/// lives. The owner's device checks as well, by a key for exactly the memory, and, if it has memory
/// windows of type 2, for this connection only. What it refuses ends the connection (siw of Linux
/// 6.1 does not ask for the right to read).
class remote_region {
public:
  /// Of no memory.
  remote_region() noexcept = default;

  bool is_open() const noexcept { return lease_ != nullptr; }
  std::uint64_t size() const noexcept { return memory_.size; }
  access rights() const noexcept { return rights_; }
  /// Address, size and key. Operations on these alone are checked by no lease.
  const remote_buffer& buffer() const noexcept { return memory_; }

  /// When the lease ends as far as this side knows: `max()` if not by time, `min()` if it has ended
  /// otherwise. Renewals count.
  std::chrono::steady_clock::time_point deadline() const;

  /// `bytes` from `offset` on, or all from there. Errors: `result_out_of_range` (of the generic
  /// category) if they are not within this region; one past the end is an empty slice.
  remote_region slice(std::uint64_t offset, std::uint64_t bytes, error_code& ec) const;
  remote_region slice(std::uint64_t offset, std::uint64_t bytes) const;
  remote_region slice(std::uint64_t offset, error_code& ec) const {
    return slice(offset, size() < offset ? 0 : size() - offset, ec);
  }
  remote_region slice(std::uint64_t offset) const {
    return slice(offset, size() < offset ? 0 : size() - offset);
  }

  /// Lets go of the memory.
  void reset() noexcept { *this = {}; }

private:
  friend detail::connection_impl;

  std::shared_ptr<const detail::lease_handle> lease_;
  remote_buffer memory_;
  access rights_ = access::local_read;
};

/// What an operation on the peer's memory may be aimed at.
template <class T>
concept remote_memory = std::same_as<T, remote_buffer> || std::same_as<T, remote_region>;

} // namespace asio_rdma
