// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include <cstdint>

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// Rights that one side grants the other, in the bits of this protocol.
enum class remote_rights : std::uint32_t { none = 0, read = 1, write = 2, atomic = 4, all = 7 };

constexpr remote_rights operator|(remote_rights a, remote_rights b) noexcept {
  return static_cast<remote_rights>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr remote_rights operator&(remote_rights a, remote_rights b) noexcept {
  return static_cast<remote_rights>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}
/// Whether `b` contains all rights of `a`.
constexpr bool within(remote_rights a, remote_rights b) noexcept { return (a & b) == a; }

access to_access(remote_rights r) noexcept;
remote_rights to_rights(access a) noexcept;

} // namespace asio_rdma::detail
#pragma GCC visibility pop
