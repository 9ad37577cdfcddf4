// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include <cstddef>
#include <functional>
#include <string_view>

namespace asio_rdma {

struct memory_pool_options {
  /// What the device may do in all of the pool's memory. On iWARP `remote_write` lets a
  /// `queue_pair` READ into it, and the peer that is read from write anywhere in it (RFC 5040,
  /// section 5.2); connections and streams need and do neither.
  access rights = access::local_write;
  /// Bytes of the first arena (2 MiB), rounded up to a page. Each further one is as large as all
  /// before.
  std::size_t first_arena = std::size_t(2) << 20;
  /// Bytes that the pool registers at most (1 GiB).
  std::size_t limit = std::size_t(1) << 30;
  /// Whether arenas that are multiples of 2 MiB are to be of huge pages: reserved ones
  /// (/proc/sys/vm/nr_hugepages) if there are, else transparent ones (madvise(2), MADV_HUGEPAGE).
  bool huge_pages = true;
  /// Whether every buffer is zeroed when it is allocated.
  bool zeroed = false;
  /// Told once, and in words, if there are not enough reserved huge pages. Called by `allocate` and
  /// `reserve`, so by whatever allocates from the pool; must not throw, nor use the pool or what
  /// does.
  std::function<void(std::string_view)> log;
};

/// What a pool has at one time.
struct memory_pool_statistics {
  std::size_t arenas = 0;
  std::size_t bytes_registered = 0;
  std::size_t bytes_huge = 0;    ///< Of these, in reserved huge pages.
  std::size_t blocks_in_use = 0; ///< Allocated and not returned.
  std::size_t bytes_in_use = 0;  ///< In these blocks, as they were asked for.
};

} // namespace asio_rdma
