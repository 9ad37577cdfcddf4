// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include "verbs/memory_window_impl.hpp"

#include <cstddef>
#include <memory>

namespace asio_rdma::detail {

/// The key of a grant, for exactly its memory. If the device has memory windows of type 2, it is
/// the key of a window: valid only on the peer's queue pair, bound to a region that has no remote
/// rights. Otherwise it is the key of the region, which every peer in the protection domain could
/// use.
///
/// The region belongs to the grant alone in either case: rxe of Linux 6.1 confines an access to the
/// window's region, not to the window.
class grant_key {
public:
  /// A key that is not open.
  grant_key() noexcept = default;
  /// Registers the memory. If the key has a window, `window` must then be bound. Errors: those of
  /// `memory_region` and of `memory_window`.
  grant_key(const protection_domain& pd, void* data, std::size_t bytes, access rights,
            error_code& ec);

  /// Whether the memory is registered. The key gives no access before it is made, or after it is
  /// closed.
  bool is_open() const noexcept { return region_.is_open(); }
  /// Null if the device has no memory windows, or if closed.
  const std::shared_ptr<memory_window_impl>& window() const noexcept { return window_; }
  /// The arguments for binding `window`.
  ibv_mw_bind_info binding() const noexcept;
  /// The key and range for the peer. The key must be open and made.
  remote_buffer remote() const noexcept;

  /// Ends the key at once; no bind of it may be outstanding. Errors: those of the system; the key
  /// is then still open, the device may still access the memory, and closing may be retried.
  void close(error_code& ec);

private:
  memory_region region_;
  std::shared_ptr<memory_window_impl> window_;
  access rights_ = access::local_read;
};

} // namespace asio_rdma::detail
