// SPDX-License-Identifier: BSL-1.0
// For what moves many bytes: contents that take no room, and whether memory stays flat.
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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

/// What a pool is to have from the beginning: a pool doubles when it grows, and may do so late,
/// when two parties happen to have more under way than before.
inline constexpr std::size_t most_registered = std::size_t(16) << 20;

/// Random bytes with a period that is a prime, so that a piece that is lost, doubled or out of
/// place shows at the next comparison, or in the number of all.
class endless_bytes {
public:
  /// What can be had at a time.
  static constexpr std::size_t longest = std::size_t(1) << 20;

  explicit endless_bytes(std::uint32_t seed) : bytes_(period + longest) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < period; ++i)
      bytes_[i] = static_cast<std::uint8_t>(random());
    for (std::size_t i = 0; i < longest; ++i)
      bytes_[period + i] = bytes_[i];
  }

  /// At most `longest` from there.
  const std::uint8_t* at(std::uint64_t offset) const { return bytes_.data() + offset % period; }

  /// Throws if they are others.
  void compare(std::uint64_t offset, const void* got, std::size_t n) const {
    if (std::memcmp(got, at(offset), n) != 0)
      throw std::runtime_error("other bytes than were sent, after " + std::to_string(offset));
  }

private:
  static constexpr std::size_t period = 1048583;
  std::vector<std::uint8_t> bytes_;
};

/// What a process has in memory, and a pool has registered.
struct memory_in_use {
  std::uint64_t resident = 0; ///< In bytes (proc(5)).
  std::uint64_t registered = 0;

  explicit memory_in_use(const asio_rdma::memory_pool& pool)
      : registered(pool.statistics().bytes_registered) {
    std::ifstream in("/proc/self/statm");
    std::uint64_t all = 0, pages = 0;
    in >> all >> pages;
    resident = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }

  /// Throws if it is more than before. The allocators of sanitizers keep what is freed.
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
