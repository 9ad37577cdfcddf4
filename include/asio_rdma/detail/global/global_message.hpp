// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/error.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// The messages between the nodes of a global memory. Each is one message of the connection, with
/// numbers in little-endian order:
///
///   0  type           1  status or atomic capability     2  node, or segment (16 bits)
///   4  version of `join` and `welcome`, else the request's id (32)
///   8  incarnation, or bytes, or offset, or a count (64)
///
/// `allocate` continues with the alignment (64). `join` and `welcome` continue with the segments,
/// each with address (64), size (64), key (32) and zero (32).
struct global_message {
  enum class kind : std::uint8_t {
    join = 1,      ///< The first message of the connecting node: its identity and its segments.
    welcome = 2,   ///< The answer to `join`: identity and segments of the accepting node.
    refuse = 3,    ///< The accepting node refuses, with a status.
    allocate = 4,  ///< Requests memory.
    allocated = 5, ///< The place of the memory.
    free = 6,      ///< Frees memory.
    freed = 7,
    descriptors = 8, ///< Requests memory for descriptors of locks; answered by `allocated`.
    wake = 9,        ///< The party of a descriptor has been handed a lock. No answer.
    woken = 10       ///< Passes `wake` on to the node of that party, if possible.
  };
  enum class result : std::uint8_t { ok = 0, node_in_use = 1, no_memory = 2, invalid = 3 };

  static constexpr std::size_t base_size = 16;
  static constexpr std::size_t segment_size = 24;
  static constexpr std::size_t max_segments = 256;
  static constexpr std::size_t max_size = base_size + max_segments * segment_size;
  static constexpr std::uint32_t version = 0x4d475203; // "\3RGM"
  /// The most descriptors of one request.
  static constexpr std::uint64_t max_descriptors = 1024;

  kind what = kind::join;
  result status = result::ok;
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  node_id node = 0;
  std::uint64_t incarnation = 0; ///< Distinguishes a node from earlier or other nodes with the same
                                 ///< id.
  std::vector<remote_buffer> segments;
  std::uint32_t id = 0;
  segment_id segment = 0;
  std::uint64_t value = 0; ///< Number of bytes, offset or count.
  std::uint64_t alignment = 0;
};

/// The error that a result means for the operation that requested it.
error_code error_of(global_message::result r);
std::vector<std::byte> encode(const global_message& m);
/// Returns false unless `bytes` is exactly one valid message.
bool decode(std::span<const std::byte> bytes, global_message& m);

} // namespace asio_rdma::detail
#pragma GCC visibility pop
