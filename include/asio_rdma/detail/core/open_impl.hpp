// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// Makes an implementation from `arguments`. Returns null if `open(impl)` returns an error, which
/// is stored in `ec`.
template <class Impl, class Open, class... Arguments>
std::shared_ptr<Impl> make_open(error_code& ec, Open&& open, Arguments&&... arguments) {
  auto impl = std::make_shared<Impl>(std::forward<Arguments>(arguments)...);
  ec = open(*impl);
  return ec ? nullptr : std::move(impl);
}

/// Opens an I/O object: `make()` returns its implementation, or null after an error.
template <class Impl, class Make>
void open_object(std::shared_ptr<Impl>& held, error_code& ec, Make&& make) {
  if (held)
    ec = asio::error::already_open;
  else
    held = make();
}

} // namespace asio_rdma::detail
