// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/verbs/memory_block.hpp>
#include <asio_rdma/error.hpp>

namespace asio_rdma::detail {
class dropped_blocks;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

class buffer_access;
class registered_buffer;

namespace detail {
class access_service;
struct access_initiation;
void leak(buffer_access access) noexcept;
} // namespace detail

/// Access to a `registered_buffer` while this object lives, and a reference to its memory. An
/// operation of the device has access from its start to its completion, a program while it reads or
/// writes the bytes. Any number of accesses may read the same bytes; an access that writes them is
/// exclusive. An access covers only the bytes of the buffer that it was made from: slices that do
/// not overlap do not conflict.
///
/// Move-only. True if access was granted. The access ends with the object, or by `reset`. Ending it
/// never blocks and runs no handler. Distinct objects are safe from any thread.
class buffer_access {
public:
  /// No access.
  buffer_access() noexcept = default;
  buffer_access(buffer_access&& other) noexcept { take(other); }
  buffer_access& operator=(buffer_access&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~buffer_access() { reset(); }

  /// Begins a read or write access, which replaces any access of this object. If the new access
  /// conflicts with an existing or awaited one, this object has no access and the error is
  /// `error::buffer_in_use`. An empty buffer never conflicts.
  error_code try_begin_read(const registered_buffer& buffer) noexcept {
    return try_begin(buffer, detail::access_kind::shared);
  }
  error_code try_begin_write(const registered_buffer& buffer) noexcept {
    return try_begin(buffer, detail::access_kind::exclusive);
  }

  explicit operator bool() const noexcept { return node_.granted; }

  /// Ends the access and releases the reference to the memory.
  void reset() noexcept { static_cast<void>(end()); }

private:
  friend class registered_buffer;          // `try_read_access` and others construct it
  friend class detail::access_service;     // it queues the node until the access is granted
  friend struct detail::access_initiation; // it aims the access of an operation at a buffer
  friend class detail::dropped_blocks;     // it ends the access and keeps the reference
  friend void detail::leak(buffer_access access) noexcept; // the access lasts for ever

  buffer_access(const registered_buffer& buffer, detail::access_kind kind) noexcept {
    static_cast<void>(try_begin(buffer, kind));
  }

  void aim(const registered_buffer& buffer, detail::access_kind kind) noexcept;
  error_code try_begin(const registered_buffer& buffer, detail::access_kind kind) noexcept;
  void take(buffer_access& other) noexcept;
  detail::memory_block_ptr end() noexcept;

  detail::memory_block_ptr block_;
  detail::access_node node_;
};

} // namespace asio_rdma
#pragma GCC visibility pop
