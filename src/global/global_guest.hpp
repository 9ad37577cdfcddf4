// SPDX-License-Identifier: BSL-1.0
// Objects of a part above the global memory (the locks) that the memory keeps and notifies without
// knowing them.
#pragma once

#include <asio_rdma/remote_ptr.hpp>
#include <asio_rdma/remote_word.hpp>

#include <cstdint>

namespace asio_rdma::detail {

class connection_impl;

/// Lives as long as a node.
class node_guest {
public:
  virtual ~node_guest() = default;
};

/// Lives as long as a view of the memory.
class memory_guest {
public:
  virtual ~memory_guest() = default;
  /// The node at the other end of the link reports that the party of this descriptor has been
  /// handed a lock there. The report may be wrong.
  virtual void on_next(const connection_impl* way, segment_id segment,
                       std::uint64_t descriptor) = 0;
  /// Called after the lanes to other nodes have been closed.
  virtual void close() = 0;
};

/// The descriptor of a remote party at a lock, in the segment of the locks that it takes. A node
/// lends descriptors to its peers.
struct alignas(32) alock_descriptor {
  shared_word<std::uint64_t> next, turn;
  /// Set by the owner when its device has released the party's queue pair. From then on no
  /// outstanding access of the party can take effect.
  cpu_atomic<std::uint64_t> dead;
};

} // namespace asio_rdma::detail
