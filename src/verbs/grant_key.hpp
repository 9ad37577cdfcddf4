// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include "verbs/memory_window_impl.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// The longest memory that a window is bound to: libmlx5 binds no window of 2 GiB.
inline constexpr std::size_t max_window_bytes = (std::size_t(1) << 31) - 1;

/// The key of memory that a peer may access, for exactly that memory. If the device has memory
/// windows of type 2, it is the key of a window: valid only on the peer's queue pair, bound to a
/// region that has no remote rights. Otherwise it is the key of a region, which every peer in the
/// protection domain could use.
///
/// The region belongs to the key alone, unless the device confines a peer to the window.
class grant_key {
public:
  /// A key that is not open.
  grant_key() noexcept = default;
  /// Registers the memory. If the key has a window, `window` must then be bound. It has none for
  /// device-only memory: the kernel binds no window to a dma-buf. Errors: those of `register_view`
  /// and of `memory_window`; `message_size` above `max_window_bytes` if the key would have a
  /// window.
  grant_key(const protection_domain& pd, const const_buffer& memory, access rights, error_code& ec);
  /// The key of a region. It has no window.
  explicit grant_key(memory_region region) noexcept : region_(std::move(region)) {}
  /// The key of a window, which must then be bound, on at most `max_window_bytes` of a region that
  /// others use too. The device must confine its windows, and the region outlive the key.
  grant_key(std::shared_ptr<memory_window_impl> window, const memory_region& region, void* data,
            std::size_t bytes, access rights) noexcept;

  /// The key gives no access before it is made, or after it is closed.
  bool is_open() const noexcept { return window_ != nullptr || region_.is_open(); }
  /// Null if the device has no memory windows, or if closed.
  const std::shared_ptr<memory_window_impl>& window() const noexcept { return window_; }
  /// The arguments for binding `window`.
  const ibv_mw_bind_info& binding() const noexcept { return binding_; }
  /// The key and range for the peer. The key must be open and made.
  remote_buffer remote() const noexcept;

  /// Ends the key at once; no bind of it may be outstanding. Errors: those of the system; the key
  /// is then still open, the device may still access the memory, and closing may be retried.
  void close(error_code& ec);
  /// Closes a key that the device has invalidated. Its window may be bound again.
  void invalidated() noexcept { window_.reset(); }

private:
  memory_region region_;
  std::shared_ptr<memory_window_impl> window_;
  ibv_mw_bind_info binding_{};
};

} // namespace asio_rdma::detail
