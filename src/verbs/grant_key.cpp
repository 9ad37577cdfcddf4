// SPDX-License-Identifier: BSL-1.0
#include "verbs/grant_key.hpp"

#include <cassert>
#include <cstdint>

namespace asio_rdma::detail {
namespace {

// A window needs the rights to bind and, for remote writes, to write locally (ibv_bind_mw(3)).
access rights_for_window(access rights) noexcept {
  const bool writes = has(rights, access::remote_write | access::remote_atomic);
  return access::window_bind | (writes ? access::local_write : access::local_read);
}

ibv_mw_bind_info binding_of(const memory_region& region, void* data, std::size_t bytes,
                            access rights) noexcept {
  return {region.native_handle(), reinterpret_cast<std::uintptr_t>(data), bytes,
          window_access(rights)};
}

} // namespace

grant_key::grant_key(const protection_domain& pd, const const_buffer& memory, access rights,
                     error_code& ec) {
  if (!pd.is_open() || !pd.get_device().has_memory_windows() || memory.is_device_only()) {
    region_ = register_view(pd, memory, rights, ec);
    return;
  }
  void* const data = const_cast<void*>(memory.data());
  const std::size_t bytes = memory.size();
  if (has(rights, access::remote_atomic) && !pd.get_device().has_atomics()) {
    ec = asio::error::operation_not_supported;
    return;
  }
  if (bytes > max_window_bytes) {
    ec = asio::error::message_size;
    return;
  }
  window_ = make_window(pd, ec);
  if (!ec)
    region_ = register_exactly(pd, data, bytes, rights_for_window(rights), ec);
  if (ec)
    window_.reset();
  else
    binding_ = binding_of(region_, data, bytes, rights);
}

grant_key::grant_key(std::shared_ptr<memory_window_impl> window, const memory_region& region,
                     void* data, std::size_t bytes, access rights) noexcept
    : window_(std::move(window)), binding_(binding_of(region, data, bytes, rights)) {
  assert(window_ != nullptr && bytes <= max_window_bytes);
}

remote_buffer grant_key::remote() const noexcept {
  assert(is_open());
  return window_ ? remote_buffer{binding_.addr, binding_.length, window_->rkey()}
                 : region_.remote();
}

void grant_key::close(error_code& ec) {
  ec.clear();
  if (window_)
    ec = window_->close();
  if (ec)
    return;
  window_.reset();
  region_.close(ec);
}

} // namespace asio_rdma::detail
