// SPDX-License-Identifier: BSL-1.0
#include "memory.hpp"

#include <new>
#include <sys/mman.h>

namespace perf {

namespace {

/// The receives of a connection or a stream that have grown, and its frames.
constexpr std::size_t for_link = std::size_t(16) << 20;

asio_rdma::memory_pool_options pool_options(std::size_t bytes) {
  asio_rdma::memory_pool_options o;
  o.first_arena = bytes + for_link;
  // Receives grow while less than half of the limit is in use.
  o.limit = 2 * (o.first_arena + for_link);
  return o;
}

} // namespace

pages::pages(std::size_t bytes)
    : bytes_(bytes),
      data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (data_ == MAP_FAILED)
    throw std::bad_alloc();
}

pages::~pages() { ::munmap(data_, bytes_); }

region_slots::region_slots(const side& s, const request& r, std::uint32_t count,
                           asio_rdma::access rights)
    : size_(r.size),
      count_(count),
      memory_(size_ * count_ + 1),
      region_(s.pd, memory_.data(), memory_.size(), rights) {}

pool_slots::pool_slots(const side& s, std::uint64_t size, std::uint32_t count)
    : size_(size),
      count_(count),
      pool_(s.pd, pool_options(size_ * count_)),
      memory_(pool_.allocate(size_ * count_)) {}

} // namespace perf
