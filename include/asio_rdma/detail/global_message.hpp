// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// What nodes of a global memory tell each other, each as one message of their connection, with
/// numbers in little-endian order:
///
///   0  type           1  status or atomic capability     2  node, or segment (16 bits)
///   4  version of `join` and `welcome`, else the request's id (32)
///   8  incarnation, or bytes, or offset, or a count (64)
///
/// and then of `allocate` the alignment (64), and of `join` and `welcome` the segments, each with
/// address (64), size (64), key (32) and zero (32).
struct global_message {
  enum class kind : std::uint8_t {
    join = 1,      ///< The first message, of who has connected: who it is and what it hosts.
    welcome = 2,   ///< The same of the other side.
    refuse = 3,    ///< Instead of it, with a status.
    allocate = 4,  ///< Asks for memory.
    allocated = 5, ///< Where it is.
    free = 6,      ///< Gives it back.
    freed = 7,
    descriptors = 8, ///< Asks for memory for so many descriptors of locks; then `allocated`.
    wake = 9,        ///< The one of whom a descriptor is has been handed a lock. No answer.
    woken = 10       ///< Tells him so, as far as he can be told.
  };
  enum class result : std::uint8_t { ok = 0, node_in_use = 1, no_memory = 2, invalid = 3 };

  static constexpr std::size_t base_size = 16;
  static constexpr std::size_t segment_size = 24;
  static constexpr std::size_t max_segments = 256;
  static constexpr std::size_t max_size = base_size + max_segments * segment_size;
  static constexpr std::uint32_t version = 0x4d475203; // "\3RGM"
  /// That a node may ask for at a time.
  static constexpr std::uint64_t max_descriptors = 1024;

  kind what = kind::join;
  result status = result::ok;
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  node_id node = 0;
  std::uint64_t incarnation = 0; ///< Tells a node from another that has or had its id.
  std::vector<remote_buffer> segments;
  std::uint32_t id = 0;
  segment_id segment = 0;
  std::uint64_t value = 0; ///< Bytes, offset or count.
  std::uint64_t alignment = 0;
};

std::vector<std::byte> encode(const global_message& m);
/// False if it is not one, to the last byte.
bool decode(std::span<const std::byte> bytes, global_message& m);

} // namespace asio_rdma::detail
