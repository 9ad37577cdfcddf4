// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// Opens an I/O object: makes its implementation from `arguments`, and keeps it if `open(impl)`
/// returns no error.
template <class Impl, class Open, class... Arguments>
void open_impl(std::shared_ptr<Impl>& held, error_code& ec, Open&& open, Arguments&&... arguments) {
  if (held) {
    ec = asio::error::already_open;
    return;
  }
  auto impl = std::make_shared<Impl>(std::forward<Arguments>(arguments)...);
  ec = open(*impl);
  if (!ec)
    held = std::move(impl);
}

} // namespace asio_rdma::detail
