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

} // namespace

grant_key::grant_key(const protection_domain& pd, void* data, std::size_t bytes, access rights,
                     error_code& ec)
    : rights_(rights) {
  if (!pd.is_open() || !pd.get_device().has_memory_windows()) {
    region_ = memory_region(pd, data, bytes, rights, ec);
    return;
  }
  if (has(rights, access::remote_atomic) && !pd.get_device().has_atomics()) {
    ec = asio::error::operation_not_supported;
    return;
  }
  window_ = make_window(pd, ec);
  if (!ec)
    region_ = register_exactly(pd, data, bytes, rights_for_window(rights), ec);
  if (ec)
    window_.reset();
}

ibv_mw_bind_info grant_key::binding() const noexcept {
  assert(window_ != nullptr && region_.is_open());
  return {region_.native_handle(), reinterpret_cast<std::uintptr_t>(region_.data()), region_.size(),
          window_access(rights_)};
}

remote_buffer grant_key::remote() const noexcept {
  assert(region_.is_open());
  remote_buffer result = region_.remote();
  if (window_)
    result.rkey = window_->rkey();
  return result;
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
