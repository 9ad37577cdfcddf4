// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/registered_buffer.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

namespace asio_rdma::detail {
class connection_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {
namespace detail {

/// A lease of a connection, shared by the handles. The destructor releases it.
struct lease_handle {
  lease_handle(std::weak_ptr<connection_impl> c, std::uint32_t i) noexcept
      : connection(std::move(c)), id(i) {}
  lease_handle(const lease_handle&) = delete;
  ~lease_handle();

  const std::weak_ptr<connection_impl> connection;
  const std::uint32_t id;
};

} // namespace detail

/// Memory of the peer of a connection, or a slice of such memory, that this side may use until its
/// lease ends. Copies and slices share the lease; the memory is released with the last of them.
/// Distinct objects are safe from any thread; one object is unsafe while it is assigned.
///
/// Each operation is checked before it is posted: `error::lease_expired` after the deadline, or if
/// the region was handed back; `error::lease_revoked`; `error::rights_refused`;
/// `error::remote_range`; `invalid_argument` for a region of another connection. After these errors
/// the connection remains usable. The owner's device checks as well, by a key for exactly the
/// memory, and, if it has memory windows of type 2, for this connection only. When the owner takes
/// the memory back (`async_revoke`), operations under way finish, and later ones fail with
/// `error::lease_revoked`. If the owner's device refuses an operation, the connection ends (siw of
/// Linux 6.1 does not check the right to read).
class remote_region {
public:
  /// A region without memory.
  remote_region() noexcept = default;

  bool is_open() const noexcept { return lease_ != nullptr; }
  std::uint64_t size() const noexcept { return memory_.size; }
  access rights() const noexcept { return rights_; }
  /// Address, size and key. Operations on this buffer are not checked against the lease.
  const remote_buffer& buffer() const noexcept { return memory_; }

  /// The end of the lease as far as this side knows: `max()` for a lease without a time limit,
  /// `min()` if the lease has ended otherwise. Renewals are taken into account.
  std::chrono::steady_clock::time_point deadline() const;

  /// The slice of `bytes` from `offset`, or of all bytes from `offset`. Errors:
  /// `result_out_of_range` (of the generic category) if the slice is not within this region; a
  /// slice at the end is empty.
  remote_region slice(std::uint64_t offset, std::uint64_t bytes, error_code& ec) const;
  remote_region slice(std::uint64_t offset, std::uint64_t bytes) const;
  remote_region slice(std::uint64_t offset, error_code& ec) const {
    return slice(offset, size() < offset ? 0 : size() - offset, ec);
  }
  remote_region slice(std::uint64_t offset) const {
    return slice(offset, size() < offset ? 0 : size() - offset);
  }

  /// Releases the memory.
  void reset() noexcept { *this = {}; }

private:
  friend detail::connection_impl; // makes regions, and checks their leases

  std::shared_ptr<const detail::lease_handle> lease_;
  remote_buffer memory_;
  access rights_ = access::local_read;
};

/// A region that the peer has sent: a `registered_buffer` if the peer hands back memory of this
/// side, or a `remote_region` if the memory is the peer's.
struct received_region : std::variant<registered_buffer, remote_region> {
  using variant::variant;

  std::uint64_t tag = 0; ///< As given to `connection::async_send_region`.
};

/// The target of an operation on the peer's memory.
template <class T>
concept remote_memory = std::same_as<T, remote_buffer> || std::same_as<T, remote_region>;

} // namespace asio_rdma
#pragma GCC visibility pop
