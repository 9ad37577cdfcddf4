// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/support/pair.hpp"

#include <cstdint>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace test {

/// Memory as a GPU's: a dma-buf of udmabuf or, if the machine has none, the memfd itself, which the
/// software device takes. Its addresses in the process forbid every access, so an access of the CPU
/// by them ends the test.
class device_memory {
public:
  static constexpr std::size_t size = std::size_t(4) << 20;
  /// The first byte is not at the beginning of the dma-buf.
  static constexpr std::uint64_t offset = 3 << 12;

  device_memory()
      : pages_(::memfd_create("device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
        address_(::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(pages_ >= 0);
    REQUIRE(address_ != MAP_FAILED);
    REQUIRE(::ftruncate(pages_, size + offset) == 0);
    REQUIRE(::fcntl(pages_, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    const int maker = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    if (maker < 0)
      return;
    udmabuf_create how{};
    how.memfd = static_cast<std::uint32_t>(pages_);
    how.flags = UDMABUF_FLAGS_CLOEXEC;
    how.size = size + offset;
    dma_buf_ = ::ioctl(maker, UDMABUF_CREATE, &how);
    ::close(maker);
  }
  device_memory(const device_memory&) = delete;
  ~device_memory() {
    ::munmap(address_, size);
    ::close(pages_);
    if (dma_buf_ >= 0)
      ::close(dma_buf_);
  }

  /// Whether it is a dma-buf, or else a memfd.
  bool is_dma_buf() const { return dma_buf_ >= 0; }

  memory_region region(const protection_domain& pd, access rights, error_code& ec) const {
    return part(pd, 0, size, address_, rights, ec);
  }
  /// Registers `bytes` bytes from `at` on, by another address.
  memory_region part(const protection_domain& pd, std::size_t at, std::size_t bytes,
                     const void* address, access rights, error_code& ec) const {
    return memory_region::from_dmabuf(pd, dma_buf_ >= 0 ? dma_buf_ : pages_, offset + at, bytes,
                                      reinterpret_cast<std::uintptr_t>(address), rights, ec);
  }

  // The bytes as the owner of the memory sees them.
  void put(std::size_t at, std::string_view bytes) const {
    REQUIRE(::pwrite(pages_, bytes.data(), bytes.size(), static_cast<off_t>(offset + at)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  std::string text(std::size_t at, std::size_t bytes) const {
    std::string result(bytes, '\0');
    REQUIRE(::pread(pages_, result.data(), bytes, static_cast<off_t>(offset + at)) ==
            static_cast<ssize_t>(bytes));
    return result;
  }

private:
  int pages_;
  int dma_buf_ = -1;
  void* address_;
};

/// Device memory that is registered.
struct registered_device_memory : device_memory {
  explicit registered_device_memory(const protection_domain& pd, access rights = all_rights)
      : region(device_memory::region(pd, rights, ec)) {}

  mutable_buffer view(std::size_t at, std::size_t bytes) const { return region.buffer(at, bytes); }
  /// Whether the device takes it, as soft does. Otherwise checks the error, and reports it.
  bool exists() const {
    if (!ec)
      return true;
    REQUIRE(soft_set == nullptr);
    CHECK_FALSE(region.is_open());
    if (is_dma_buf())
      CHECK(ec == asio::error::operation_not_supported);
    not_on_this_device("memory of a dma-buf");
    return false;
  }

  error_code ec;
  memory_region region;
};

/// Text that depends on `seed`.
inline std::string letters(std::size_t bytes, unsigned seed) {
  std::string result(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i)
    result[i] = static_cast<char>('a' + (i * 7 + i / 251 + seed) % 26);
  return result;
}

} // namespace test
