// SPDX-License-Identifier: BSL-1.0
#include "core/size_classes.hpp"

#include "memory/memory_arena.hpp"
#include "verbs/withheld.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace asio_rdma::detail {
namespace {

// MAP_HUGE_2MB (mmap(2)), which the C library's headers lack. The default size may be different.
constexpr int two_megabytes = 21 << 26;

void* map(std::size_t bytes, int flags) noexcept {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

// Maps memory at a multiple of a huge page, which mmap does not guarantee.
void* map_aligned(std::size_t bytes) noexcept {
  auto* const begin = static_cast<char*>(map(bytes + huge_page, 0));
  if (begin == nullptr)
    return nullptr;
  const std::size_t before =
      (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
  if (before != 0)
    ::munmap(begin, before);
  ::munmap(begin + before + bytes, huge_page - before);
  return begin + before;
}

// MADV_POPULATE_WRITE (madvise(2)), which the C library's headers lack.
constexpr int populate_for_writing = 23;

// Makes the pages present, as registering them would do at once. That would hold the lock of the
// process's memory map, for which all threads wait that map memory, or use a page for the first
// time. In a virtual machine a MiB may take 15 ms, if its host has to find the memory. Kernels
// before 5.14 have no such advice.
void make_present(char* data, std::size_t bytes) noexcept {
  constexpr std::size_t part = std::size_t(1) << 20;
  for (std::size_t done = 0; done < bytes; done += part)
    if (::madvise(data + done, std::min(part, bytes - done), populate_for_writing) != 0)
      return;
}

/// Mapped memory. The destructor unmaps it.
class mapping {
public:
  mapping(char* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}
  mapping(mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  ~mapping() {
    if (data_ != nullptr)
      ::munmap(data_, bytes_);
  }

private:
  char* data_;
  std::size_t bytes_;
};

class registered_arena final : public memory_arena {
public:
  ~registered_arena() override {
    error_code ec;
    mapping memory(data, size);
    region_.close(ec);
    if (ec)
      withhold_key(std::move(region_), std::move(memory));
  }

  /// Returns the errno value of a failure to get reserved huge pages, or 0. `ec` is set if there is
  /// no memory at all.
  int map_memory(std::size_t bytes, bool huge_pages, error_code& ec) noexcept {
    int reason = 0;
    void* at = nullptr;
    if (huge_pages && bytes % huge_page == 0) {
      at = map(bytes, MAP_HUGETLB | two_megabytes);
      huge = at != nullptr;
      if (!huge) {
        reason = errno;
        at = map_aligned(bytes);
        if (at != nullptr)
          static_cast<void>(
              ::madvise(at, bytes, MADV_HUGEPAGE)); // advice: the kernel may have none
      }
    } else {
      at = map(bytes, 0);
    }
    if (at == nullptr) {
      ec = system_error_code(errno);
      return reason;
    }
    data = static_cast<char*>(at);
    size = bytes;
    return reason;
  }

  void register_memory(const protection_domain& pd, access rights, error_code& ec) {
    if (!has(rights, access::on_demand))
      make_present(data, size);
    binds = pd.is_open() && pd.get_device().confines_windows() && !has(rights, access::on_demand);
    region_ = register_exactly(pd, data, size, binds ? rights | access::window_bind : rights, ec);
    if (ec)
      return;
    lkey = region_.lkey();
    region = &region_;
  }

private:
  memory_region region_;
};

} // namespace

arena_maker registered_arenas(const protection_domain& pd, const memory_pool_options& options) {
  return [pd, rights = options.rights, huge_pages = options.huge_pages, log = options.log,
          logged = std::make_shared<std::atomic<bool>>(false)](std::size_t bytes, error_code& ec) {
    auto arena = std::make_unique<registered_arena>();
    const int reason = arena->map_memory(bytes, huge_pages, ec);
    if (!ec)
      arena->register_memory(pd, rights, ec);
    if (ec)
      return std::unique_ptr<memory_arena>();
    if (reason != 0 && log && !logged->exchange(true))
      log("memory pool: no reserved 2 MiB huge pages for an arena of " +
          std::to_string(bytes / huge_page) + " (" + std::generic_category().message(reason) +
          "); asked for transparent ones instead (reserve some: /proc/sys/vm/nr_hugepages)");
    return std::unique_ptr<memory_arena>(std::move(arena));
  };
}

} // namespace asio_rdma::detail
