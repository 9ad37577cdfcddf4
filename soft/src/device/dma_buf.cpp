// SPDX-License-Identifier: BSL-1.0
#include "device/memory.hpp"

#include <cerrno>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace soft {
namespace {

#ifndef DMA_BUF_MAGIC // of Linux 5.6
#define DMA_BUF_MAGIC 0x444d4142
#endif
#ifndef F_GET_SEALS // of glibc's _GNU_SOURCE
#define F_GET_SEALS 1034
#endif

// The bytes of a dma-buf, whose size the kernel tells by lseek(2) alone, or of a memfd; 0 of
// anything else. A memfd has seals, if only the one that forbids further ones.
std::uint64_t size_of(int fd) {
  struct statfs of {};
  struct stat file {};
  if (fstatfs(fd, &of) == 0 && of.f_type == DMA_BUF_MAGIC) {
    const off_t end = lseek(fd, 0, SEEK_END);
    return end > 0 ? static_cast<std::uint64_t>(end) : 0;
  }
  const bool is_memfd = fcntl(fd, F_GET_SEALS) >= 0 && fstat(fd, &file) == 0;
  return is_memfd ? static_cast<std::uint64_t>(file.st_size) : 0;
}

} // namespace

dma_buf_mapping::~dma_buf_mapping() {
  if (pages_ != nullptr)
    munmap(pages_, size_);
}

int dma_buf_mapping::map(int fd, std::uint64_t offset, std::size_t bytes, bool writable) {
  if (fcntl(fd, F_GETFD) < 0)
    return errno;
  const std::uint64_t size = size_of(fd);
  if (bytes == 0 || offset > size || bytes > size - offset)
    return EINVAL;
  const std::uint64_t in_page = offset & (static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) - 1);
  // Populated, as pinning does.
  void* const pages = mmap(nullptr, bytes + in_page, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                           MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset - in_page));
  if (pages == MAP_FAILED)
    return errno;
  pages_ = pages;
  size_ = bytes + in_page;
  data_ = static_cast<std::byte*>(pages) + in_page;
  return 0;
}

} // namespace soft
