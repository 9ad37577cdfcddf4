// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include <cstddef>
#include <functional>
#include <string_view>

namespace asio_rdma {

struct memory_pool_options {
  /// The access rights of all of the pool's memory. On iWARP, with `remote_write` a `queue_pair`
  /// can READ into the memory, and the peer that it reads from can write anywhere in it (RFC 5040,
  /// section 5.2). Connections and streams neither need nor allow that.
  access rights = access::local_write;
  /// Bytes of the first arena (2 MiB), rounded up to a page. Each further arena is as large as all
  /// earlier ones together.
  std::size_t first_arena = std::size_t(2) << 20;
  /// The maximum number of bytes that the pool registers (1 GiB).
  std::size_t limit = std::size_t(1) << 30;
  /// Whether arenas that are multiples of 2 MiB are to be of huge pages: reserved ones
  /// (/proc/sys/vm/nr_hugepages) if there are, else transparent ones (madvise(2), MADV_HUGEPAGE).
  bool huge_pages = true;
  /// Whether every buffer is zeroed when it is allocated.
  bool zeroed = false;
  /// Called once, with a message, if there are not enough reserved huge pages. The caller is
  /// `allocate` or `reserve`, so any function that allocates from the pool. It must not throw, and
  /// must use neither the pool nor objects that use the pool.
  std::function<void(std::string_view)> log;
};

/// The state of a pool at one time.
struct memory_pool_statistics {
  std::size_t arenas = 0;
  std::size_t bytes_registered = 0;
  std::size_t bytes_huge = 0;    ///< Registered bytes in reserved huge pages.
  std::size_t blocks_in_use = 0; ///< Allocated and not returned.
  std::size_t bytes_in_use = 0;  ///< Requested bytes of these blocks.
};

} // namespace asio_rdma
