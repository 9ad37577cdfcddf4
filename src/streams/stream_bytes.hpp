// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "streams/stream_impl.hpp"

namespace asio_rdma::detail {

/// A READ of offered bytes before the application asks for them.
struct stream_impl::chunk final : link_pull {
  explicit chunk(stream_impl& s) noexcept : link_pull(s.link_, &chunk::on_done), owner(s) {}
  // If `pull` could not start the READ, the protocol counts it as not begun.
  static void on_done(link_pull& p) {
    const auto& self = static_cast<chunk&>(p);
    if (!self.failure())
      self.owner.bytes_->pulled(*self.of);
  }

  stream_impl& owner;
  stream_chunk* of = nullptr;
  registered_buffer memory;
};

/// A READ into the reader's own memory.
struct stream_impl::direct_pull final : link_pull {
  explicit direct_pull(stream_impl& s) noexcept
      : link_pull(s.link_, &direct_pull::on_done), owner(s) {}
  static void on_done(link_pull& p) {
    const auto& self = static_cast<direct_pull&>(p);
    self.owner.bytes_->pulled(*self.to, self.size - self.left());
  }

  stream_impl& owner;
  stream_read* to = nullptr;
  std::uint64_t size = 0;
};

} // namespace asio_rdma::detail
