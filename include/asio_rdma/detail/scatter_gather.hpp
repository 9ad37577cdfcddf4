// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <infiniband/verbs.h>

#include <cstdint>

namespace asio_rdma::detail {

/// A buffer as the device takes it. It has fewer than 2^32 bytes.
inline ibv_sge element_of(const const_buffer& b) noexcept {
  return {reinterpret_cast<std::uintptr_t>(b.data()), static_cast<std::uint32_t>(b.size()),
          b.lkey()};
}

} // namespace asio_rdma::detail
