// SPDX-License-Identifier: BSL-1.0
// Help for tests that move many bytes: contents that need little memory, and a check that memory
// does not grow.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <asio_rdma/memory_pool.hpp>

namespace test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) // gcc
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool is_sanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer); // clang
#else
inline constexpr bool is_sanitized = false;
#endif

/// The initial size of a pool. A pool doubles when it grows, and may do so late, when two parties
/// happen to have more pending than before.
inline constexpr std::size_t most_registered = std::size_t(16) << 20;

/// Random bytes with a prime period. A lost, doubled or misplaced piece is found by the next
/// comparison, or by the total number.
class endless_bytes {
public:
  /// The most bytes that `at` gives at a time.
  static constexpr std::size_t longest = std::size_t(1) << 20;

  explicit endless_bytes(std::uint32_t seed) : bytes_(period + longest) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < period; ++i)
      bytes_[i] = static_cast<std::uint8_t>(random());
    for (std::size_t i = 0; i < longest; ++i)
      bytes_[period + i] = bytes_[i];
  }

  /// Up to `longest` bytes from `offset`.
  const std::uint8_t* at(std::uint64_t offset) const { return bytes_.data() + offset % period; }

  /// Throws if the bytes differ.
  void compare(std::uint64_t offset, const void* bytes, std::size_t n) const {
    if (n != 0 && std::memcmp(bytes, at(offset), n) != 0)
      throw std::runtime_error("other bytes than were sent, after " + std::to_string(offset));
  }

private:
  static constexpr std::size_t period = 1048583;
  std::vector<std::uint8_t> bytes_;
};

/// The resident memory of the process (proc(5)).
inline std::uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::uint64_t all = 0, pages = 0;
  in >> all >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// The memory in use by the process, and the memory registered by a pool.
struct memory_in_use {
  std::uint64_t resident = resident_bytes();
  std::uint64_t registered = 0;

  explicit memory_in_use(const asio_rdma::memory_pool& pool)
      : registered(pool.statistics().bytes_registered) {}

  /// Throws if more memory is in use than before. With sanitizers only registered memory is
  /// compared: their allocators keep freed memory.
  void compare(const memory_in_use& before) const {
    constexpr std::uint64_t noise = std::uint64_t(2) << 20; // threads' heaps, stacks
    if (!is_sanitized && resident > before.resident + noise)
      throw std::runtime_error("memory has grown from " + std::to_string(before.resident) + " to " +
                               std::to_string(resident) + " bytes");
    if (registered > before.registered)
      throw std::runtime_error("registered memory has grown from " +
                               std::to_string(before.registered) + " to " +
                               std::to_string(registered) + " bytes");
  }
};

} // namespace test
