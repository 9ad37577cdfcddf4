// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_pool.hpp>

#include "memory/memory_pool_impl.hpp"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>

namespace test {

/// A source of arenas for a pool, without registration. Counts the arenas.
struct plain_arenas {
  struct arena final : asio_rdma::detail::memory_arena {
    arena(plain_arenas& f, std::size_t bytes) : from(f) {
      data = static_cast<char*>(std::aligned_alloc(asio_rdma::detail::page_bytes, bytes));
      size = bytes;
      lkey = static_cast<std::uint32_t>(++from.made);
      ++from.alive;
    }
    ~arena() override {
      if (from.deregisters)
        from.deregisters();
      std::free(data);
      --from.alive;
    }
    plain_arenas& from;
  };

  /// With `whole`, a part of that pool.
  asio_rdma::memory_pool pool(const asio_rdma::memory_pool_options& options = {},
                              const asio_rdma::memory_pool& whole = {}) {
    return asio_rdma::memory_pool(
        asio_rdma::detail::memory_pool_ptr(new asio_rdma::detail::memory_pool_impl(
            options,
            [this](std::size_t bytes,
                   asio_rdma::error_code& ec) -> std::unique_ptr<asio_rdma::detail::memory_arena> {
              ++asked;
              if (bytes > largest) {
                ec = asio_rdma::error::memory_limit;
                return nullptr;
              }
              return std::make_unique<arena>(*this, bytes);
            },
            whole)));
  }

  std::atomic<std::size_t> made{0}, asked{0};
  std::atomic<int> alive{0};
  std::function<void()> deregisters;                  // called for each arena that ends
  std::size_t largest = static_cast<std::size_t>(-1); // larger arenas fail
};

} // namespace test
