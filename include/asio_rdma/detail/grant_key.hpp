// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/memory_window_impl.hpp>
#include <asio_rdma/memory_region.hpp>

#include <cstddef>
#include <memory>

namespace asio_rdma::detail {

/// The key of a grant, for exactly its memory. Where the device has memory windows of type 2 it is
/// one's, good on the peer's queue pair only, and the region that it is bound to has no rights for
/// anybody. Elsewhere it is the region's, which every peer in the protection domain could use.
///
/// The region is the grant's own in either case: rxe of Linux 6.1 does not keep an access within
/// its window, only within the region.
class grant_key {
public:
  /// Not open.
  grant_key() noexcept = default;
  /// Registers the memory. A key with a window is made by binding that. Errors: as of a
  /// `memory_region`, and of a `memory_window`.
  grant_key(const protection_domain& pd, void* data, std::size_t bytes, access rights,
            error_code& ec);

  /// Nothing can be reached by it before it is made, nor when it is closed.
  bool is_open() const noexcept { return region_.is_open(); }
  /// Null on a device without them, and when closed.
  const std::shared_ptr<memory_window_impl>& window() const noexcept { return window_; }
  /// What `window` is to be bound to.
  ibv_mw_bind_info binding() const noexcept;
  /// What to tell the peer. Needs an open key that is made.
  remote_buffer remote() const noexcept;

  /// Ends it now, which needs that no bind of it is under way. Errors: the system's; then it is
  /// still open, the device may still reach the memory, and closing may be tried again.
  void close(error_code& ec);

private:
  memory_region region_;
  std::shared_ptr<memory_window_impl> window_;
  access rights_ = access::local_read;
};

} // namespace asio_rdma::detail
