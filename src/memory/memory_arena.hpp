// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace asio_rdma::detail {

/// Registered memory of a pool. It begins on a page boundary.
struct memory_arena {
  memory_arena() = default;
  memory_arena(const memory_arena&) = delete;
  virtual ~memory_arena() = default;

  char* data = nullptr;
  std::size_t size = 0; ///< A multiple of `page_bytes`.
  std::uint32_t lkey = 0;
  const memory_region* region = nullptr;
  bool binds = false; ///< Memory windows may be bound to the region.
  bool huge = false;  ///< In reserved huge pages.
};

/// A function that makes an arena of `bytes` bytes, a multiple of `page_bytes`.
using arena_maker = std::function<std::unique_ptr<memory_arena>(std::size_t bytes, error_code&)>;

/// A maker of arenas that are mapped and registered.
arena_maker registered_arenas(const protection_domain& pd, const memory_pool_options& options);

} // namespace asio_rdma::detail
