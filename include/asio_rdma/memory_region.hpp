// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/device.hpp>
#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>

namespace asio_rdma::detail {
struct dma_buf;
class memory_window_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

namespace detail {}

template <class Executor>
class basic_queue_pair;

/// The access rights of registered memory (ibv_reg_mr(3)). The owner may always let the device read
/// the memory (for sends and as the source of writes).
enum class access : unsigned {
  local_read = 0,
  local_write = 1,  ///< Receives, and the sink of RDMA READ. See `memory_region`.
  remote_write = 2, ///< Implies local_write, as verbs demand.
  remote_read = 4,
  remote_atomic = 8,     ///< Implies local_write.
  window_bind = 16,      ///< Memory windows may be bound to it.
  relaxed_ordering = 32, ///< The device may reorder its writes; ignored where it cannot.
  on_demand = 64,        ///< Not pinned; pages are faulted in by the device.
  /// The peer may FLUSH the memory, to make its bytes visible here.
  flush_visible = 128,
  flush_persistent = 256, ///< The same, to make them persistent: persistent memory only.
};

constexpr access operator|(access a, access b) noexcept {
  return static_cast<access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool has(access set, access flag) noexcept {
  return (static_cast<unsigned>(set) & static_cast<unsigned>(flag)) != 0;
}

/// A protection domain (ibv_alloc_pd(3)). A queue pair can use only memory of its own protection
/// domain. A cheap, shared handle; the domain is released with the last copy and the last object
/// made in it.
class protection_domain {
public:
  using native_handle_type = ibv_pd*;

  /// A domain that is not open, as after an error: objects cannot be made in it (`bad_descriptor`).
  protection_domain() noexcept = default;
  /// Errors: `bad_descriptor` for a device that is not open, or the system's.
  explicit protection_domain(const device& d);
  protection_domain(const device& d, error_code& ec);
  /// Adopts a domain of the device's context. The result is not open if the device is not open or
  /// `pd` is null.
  protection_domain(const device& d, native_handle_type pd, ownership owns);

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// Null when not open.
  native_handle_type native_handle() const noexcept;
  /// The domain must be open.
  const device& get_device() const noexcept;

  friend bool operator==(const protection_domain&, const protection_domain&) = default;

  struct impl;

private:
  std::shared_ptr<impl> impl_;
};

/// Registered memory (ibv_reg_mr(3)): its pages are pinned, and the device can access them by key.
/// Owns the registration, not the memory, which must outlive the registration. Move-only.
/// Deregistering fails an operation that uses the memory; it does not wait for the operation. The
/// destructor and assignment deregister too, but cannot report a failure: the registration then
/// lasts until `memory_pool::trim` succeeds in releasing it. To detect such a failure, call `close`
/// first.
///
/// On iWARP the sink of an RDMA READ must be remotely writable (RFC 5040, section 5.2), so
/// `local_write` includes `remote_write` there.
class memory_region {
public:
  using native_handle_type = ibv_mr*;

  memory_region() noexcept = default;

  /// Registers `bytes` from `data`. Errors: `bad_descriptor` for a protection domain that is not
  /// open, `error::memory_limit`, `operation_not_supported` for `on_demand`, `remote_atomic` or the
  /// rights to flush where the device has no on-demand paging, no atomics or no such FLUSH, or the
  /// system's.
  memory_region(const protection_domain& pd, void* data, std::size_t bytes,
                access rights = access::local_write);
  memory_region(const protection_domain& pd, void* data, std::size_t bytes, access rights,
                error_code& ec);
  /// Registers the memory of an Asio buffer.
  memory_region(const protection_domain& pd, asio::mutable_buffer memory,
                access rights = access::local_write)
      : memory_region(pd, memory.data(), memory.size(), rights) {}
  memory_region(const protection_domain& pd, asio::mutable_buffer memory, access rights,
                error_code& ec)
      : memory_region(pd, memory.data(), memory.size(), rights, ec) {}

  /// Registers `bytes` at `offset` of a dma-buf (a GPU's memory, for instance). `iova` is the
  /// region's address in every request, here and at peers (ibv_reg_dmabuf_mr(3)). `data` returns
  /// `iova`, which the CPU cannot dereference. The region duplicates the descriptor. Errors: as
  /// above; `operation_not_supported` if the device, or rdma-core (before 34), does not support it;
  /// EINVAL for `window_bind` and `on_demand`, which the kernel does not know for a dma-buf, if
  /// `offset` and `iova` differ within a page, or for bytes outside of the dma-buf.
  ///
  /// The region's views and buffers are device-only (`const_buffer`): the CPU never accesses their
  /// memory. An operation that would have to copy the bytes fails with `operation_not_supported`.
  /// Such operations are reads of a `stream` and its blocking writes, receives of a `connection`
  /// for messages that the peer sends whole, and on some adapters receives of a `queue_pair`
  /// (`device::has_device_only_receives`). Each class describes its own.
  static memory_region from_dmabuf(const protection_domain& pd, int descriptor,
                                   std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                                   access rights, error_code& ec);
  static memory_region from_dmabuf(const protection_domain& pd, int descriptor,
                                   std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                                   access rights = access::local_write) {
    error_code ec;
    memory_region result = from_dmabuf(pd, descriptor, offset, bytes, iova, rights, ec);
    detail::throw_if(ec, "memory_region::from_dmabuf");
    return result;
  }

  /// Adopts a region of the domain. The access rights are those that it was registered with. It
  /// must not be a region of a dma-buf, whose views would not be device-only.
  memory_region(const protection_domain& pd, native_handle_type mr, ownership owns);

  memory_region(memory_region&& other) noexcept;
  memory_region& operator=(memory_region&& other) noexcept;
  ~memory_region();

  bool is_open() const noexcept { return mr_ != nullptr; }
  /// Deregisters the memory. Errors: the system's. After an error the region is still open, the
  /// device may still access the memory, and `close` may be called again.
  void close(error_code& ec);
  void close() {
    error_code ec;
    close(ec);
    detail::throw_if(ec, "memory_region::close");
  }

  native_handle_type native_handle() const noexcept { return mr_; }
  const protection_domain& get_protection_domain() const noexcept { return pd_; }
  /// The functions below need an open region.
  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return mr_->length; }
  std::uint32_t lkey() const noexcept { return mr_->lkey; }
  std::uint32_t rkey() const noexcept { return mr_->rkey; }
  /// Whether the CPU must not access the memory: it is that of a dma-buf.
  bool is_device_only() const noexcept { return dma_buf_ != nullptr; }

  /// A view of the whole region, or of at most `bytes` from `offset` on (clamped to the end).
  mutable_buffer buffer(std::size_t offset = 0,
                        std::size_t bytes = static_cast<std::size_t>(-1)) const noexcept {
    return (mutable_buffer(data(), size(), lkey(), is_device_only()) + offset).first(bytes);
  }

  /// The description of the region, or of a part of it (clamped to the end), for a peer that shall
  /// access it.
  remote_buffer remote(std::uint64_t offset = 0,
                       std::uint64_t bytes = static_cast<std::uint64_t>(-1)) const noexcept {
    return (remote_buffer{reinterpret_cast<std::uintptr_t>(data()), size(), rkey()} + offset)
        .first(bytes);
  }

private:
  friend detail::dma_buf; // registers parts of itself

  protection_domain pd_;
  ibv_mr* mr_ = nullptr;
  void* data_ = nullptr; // the handle of a dma-buf has the offset instead
  std::shared_ptr<const detail::dma_buf> dma_buf_;
  ownership owns_ = ownership::take;
};

/// A memory window of type 2 (ibv_alloc_mw(3)): a key for a part of a region. `async_bind` of a
/// queue pair grants the key to that queue pair's peer; `async_invalidate` revokes it. Move-only.
///
/// The window belongs to the queue pair that first binds it. When that queue pair has failed or is
/// closed, the window is closed too. Destroying the window earlier ends its key, after the binds
/// that were started.
class memory_window {
public:
  using native_handle_type = ibv_mw*;

  memory_window() noexcept = default;
  /// Errors: `bad_descriptor` for a protection domain that is not open, `operation_not_supported`
  /// where the device has none of type 2, or the system's.
  explicit memory_window(const protection_domain& pd);
  memory_window(const protection_domain& pd, error_code& ec);
  /// Adopts an unbound window of type 2 of the domain. The owner of a borrowed window must free or
  /// invalidate it before its queue pair ends.
  memory_window(const protection_domain& pd, native_handle_type mw, ownership owns);
  memory_window(memory_window&&) noexcept = default;
  memory_window& operator=(memory_window&&) noexcept = default;

  bool is_open() const noexcept { return native_handle() != nullptr; }
  native_handle_type native_handle() const noexcept;
  /// The key of the last bind that was started, valid once that bind has succeeded; 0 before the
  /// first.
  std::uint32_t rkey() const noexcept;

private:
  // A bind keeps the window's `impl_`.
  template <class>
  friend class basic_queue_pair;

  std::shared_ptr<detail::memory_window_impl> impl_;
};

namespace detail {

/// As the constructor, but `local_write` does not include `remote_write` on iWARP, so the region
/// cannot be the sink of a READ there.
memory_region register_exactly(const protection_domain& pd, void* data, std::size_t bytes,
                               access rights, error_code& ec);

/// Registers the memory of a view by a key of its own. Errors: those of `memory_region`;
/// `invalid_argument` for a device-only view whose region is closed, or of another domain.
memory_region register_view(const protection_domain& pd, const const_buffer& view, access rights,
                            error_code& ec);

/// The rights as flags of ibv_reg_mr(3), and as flags for binding a memory window.
unsigned verbs_access(access rights) noexcept;
inline unsigned window_access(access rights) noexcept {
  return verbs_access(rights) & ~unsigned(IBV_ACCESS_LOCAL_WRITE);
}

} // namespace detail

} // namespace asio_rdma
#pragma GCC visibility pop
