// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/registered_buffer.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace asio_rdma {

/// A received message. It owns its payload, which is in registered memory: the payload may be kept,
/// sliced, forwarded and written to without a copy.
struct message {
  registered_buffer payload;
  std::optional<std::uint32_t> immediate; ///< As given to `async_send`.

  std::size_t size() const noexcept { return payload.size(); }
  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(payload.data()), payload.size()};
  }
};

} // namespace asio_rdma
