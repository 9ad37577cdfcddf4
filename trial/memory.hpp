// SPDX-License-Identifier: BSL-1.0
// Memory and queue pairs of a check.
#pragma once

#include "session.hpp"

#include <asio_rdma/queue_pair.hpp>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace trial {

/// The byte at `offset` of a content, of which there is one for each `seed`.
inline char content(std::size_t offset, unsigned seed) {
  return static_cast<char>((offset * 31 + (offset >> 8) * 7 + seed * 97 + 1) & 0xff);
}
inline void fill(void* to, std::size_t bytes, unsigned seed, std::size_t offset = 0) {
  for (std::size_t i = 0; i < bytes; ++i)
    static_cast<char*>(to)[i] = content(offset + i, seed);
}
/// Throws a `failure` that names the first wrong byte.
inline void compare(const void* found, std::size_t bytes, unsigned seed, std::size_t offset = 0) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (static_cast<const char*>(found)[i] != content(offset + i, seed))
      throw failure("byte " + std::to_string(offset + i) + " is not the one that was sent");
}

/// All rights that the device gives.
inline access most_rights(const device& d) {
  access result = access::local_write | access::remote_write | access::remote_read;
  if (d.has_atomics())
    result = result | access::remote_atomic;
  if (d.has_memory_windows())
    result = result | access::window_bind;
  if (d.has_flush(placement::visible))
    result = result | access::flush_visible;
  return result;
}

inline bool is_roce(const device& d) {
  return d.type() == transport::infiniband &&
         d.port(d.first_port()).link_layer == IBV_LINK_LAYER_ETHERNET;
}

/// The address vector of a connected queue pair, unless the driver does not report it
/// (irdma_query_qp of the kernel).
inline std::optional<ibv_ah_attr> if_reported(const ibv_ah_attr& route) {
  const auto is_0 = [](std::uint8_t byte) {
    return byte == 0;
  };
  if (route.is_global == 0 && route.dlid == 0 && route.sl == 0 && route.port_num == 0 &&
      std::all_of(std::begin(route.grh.dgid.raw), std::end(route.grh.dgid.raw), is_0))
    return {};
  return route;
}
inline std::optional<ibv_ah_attr> route_of(const queue_pair& qp) {
  return if_reported(qp.query(IBV_QP_AV).ah_attr);
}

/// A queue pair, memory of this side, and the place of the other side's memory.
struct pair_end {
  explicit pair_end(session& session_, const queue_pair_options& options = {},
                    std::size_t bytes = 65536)
      : s(session_),
        memory(bytes),
        region(s.pd, memory.data(), memory.size(), most_rights(s.dev)),
        qp(s.io, s.pd, options) {}

  awaitable<void> link(connect_options options = {}) {
    co_await s.link(qp, options);
    co_await s.tell(region.remote());
    there = co_await s.hear_memory();
  }

  /// The near side sends the bytes of `seed`, and the far side receives them.
  awaitable<void> carry(std::size_t bytes, unsigned seed) {
    if (s.is_near()) {
      fill(memory.data(), bytes, seed);
      co_await s.hear();
      const std::size_t n = co_await qp.async_send(region.buffer(0, bytes), use_awaitable);
      expect(n == bytes, "a send reported another size");
    } else {
      fill(memory.data(), bytes, seed + 1);
      const received r = co_await (qp.async_receive(region.buffer(0, bytes), use_awaitable) &&
                                   s.tell(std::string("ready")));
      expect(r.bytes == bytes, "a receive reported another size");
      compare(memory.data(), bytes, seed);
    }
  }

  session& s;
  std::vector<char> memory;
  memory_region region;
  queue_pair qp;
  remote_buffer there;
};

/// Memory as a GPU's: a dma-buf of udmabuf over a memfd or, on the software device, the memfd. Its
/// addresses in the process forbid every access, so an access of the processor ends the process.
class device_memory {
public:
  static constexpr std::size_t size = 4096;

  explicit device_memory(const protection_domain& pd)
      : pages_(::memfd_create("trial", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
        address_(::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    expect(pages_ >= 0 && address_ != MAP_FAILED && ::ftruncate(pages_, size) == 0 &&
               ::fcntl(pages_, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
           std::string("memory of a memfd: ") + std::strerror(errno));
    udmabuf_create how{};
    how.memfd = static_cast<std::uint32_t>(pages_);
    how.flags = UDMABUF_FLAGS_CLOEXEC;
    how.size = size;
    const int maker = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    dma_buf_ = maker < 0 ? -1 : ::ioctl(maker, UDMABUF_CREATE, &how);
    absence_ = std::string("/dev/udmabuf: ") + std::strerror(errno);
    if (maker >= 0)
      ::close(maker);
    // Of a descriptor that is not a dma-buf's the kernel reports EINVAL (dma_buf_get). Any other
    // error is the device's: libibverbs, and then the kernel, first check whether the driver
    // registers dma-bufs (libibverbs/dummy_ops.c, UVERBS_METHOD_REG_DMABUF_MR).
    error_code ec;
    region = memory_region::from_dmabuf(
        pd, dma_buf_ >= 0 ? dma_buf_ : pages_, 0, size, reinterpret_cast<std::uintptr_t>(address_),
        access::local_write | access::remote_write | access::remote_read, ec);
    if (region.is_open())
      absence_ = "on the other side";
    else if (dma_buf_ >= 0 || ec != asio::error::invalid_argument)
      absence_ = "the device does not register one: " + ec.message();
  }
  device_memory(const device_memory&) = delete;
  ~device_memory() {
    region = {};
    ::munmap(address_, size);
    ::close(pages_);
    if (dma_buf_ >= 0)
      ::close(dma_buf_);
  }

  std::string kind() const { return dma_buf_ >= 0 ? "udmabuf" : "a memfd"; }
  /// Why the region is not open.
  const std::string& absence() const { return absence_; }

  // The bytes as the owner of the memory sees them.
  void put(std::size_t bytes, unsigned seed) const {
    std::vector<char> text(bytes);
    fill(text.data(), bytes, seed);
    expect(::pwrite(pages_, text.data(), bytes, 0) == ssize_t(bytes), "memfd");
  }
  void compare(std::size_t bytes, unsigned seed) const {
    std::vector<char> text(bytes);
    expect(::pread(pages_, text.data(), bytes, 0) == ssize_t(bytes), "memfd");
    trial::compare(text.data(), bytes, seed);
  }

  memory_region region;

private:
  int pages_, dma_buf_ = -1;
  void* address_;
  std::string absence_;
};

} // namespace trial
