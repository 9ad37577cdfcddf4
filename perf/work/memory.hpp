// SPDX-License-Identifier: BSL-1.0
// The memory of the operations of a window.
#pragma once

#include "../side.hpp"

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <boost/asio/buffer.hpp>

#include <cstddef>
#include <cstdint>

namespace perf {

/// Pages that are zeroed by the kernel when they are first used.
class pages {
public:
  explicit pages(std::size_t bytes);
  pages(const pages&) = delete;
  ~pages();

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

private:
  std::size_t bytes_;
  void* data_;
};

/// Memory of some operations of one size, for a TCP socket.
class plain_slots {
public:
  plain_slots(const side&, std::uint64_t size, std::uint32_t count)
      : size_(size), count_(count), memory_(size_ * count_) {}

  asio::mutable_buffer operator[](std::uint64_t i) const {
    return asio::buffer(asio::mutable_buffer(memory_.data(), memory_.size()) +
                            std::size_t(i % count_) * size_,
                        size_);
  }

private:
  std::size_t size_, count_;
  pages memory_;
};

/// Registered memory of some operations of one size. Operation `i` has slot `i` modulo their
/// number.
class region_slots {
public:
  region_slots(const side& s, const request& r, std::uint32_t count, asio_rdma::access rights);

  asio_rdma::mutable_buffer operator[](std::uint64_t i) const {
    return region_.buffer(std::size_t(i % count_) * size_, size_);
  }
  asio_rdma::remote_buffer remote() const { return region_.remote(); }
  /// A byte that no operation is measured with.
  asio_rdma::mutable_buffer spare_byte() const { return region_.buffer(count_ * size_, 1); }

private:
  std::size_t size_, count_;
  pages memory_;
  asio_rdma::memory_region region_;
};

/// Memory of a pool, which an object with a protocol of its own uses as well.
class pool_slots {
public:
  /// `size`: bytes of a slot.
  pool_slots(const side& s, std::uint64_t size, std::uint32_t count);

  const asio_rdma::memory_pool& pool() const noexcept { return pool_; }
  asio_rdma::mutable_buffer operator[](std::uint64_t i) const {
    return (asio_rdma::mutable_buffer(memory_) + std::size_t(i % count_) * size_).first(size_);
  }

private:
  std::size_t size_, count_;
  asio_rdma::memory_pool pool_;
  asio_rdma::registered_buffer memory_;
};

} // namespace perf
