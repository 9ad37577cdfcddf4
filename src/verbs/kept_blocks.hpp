// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/verbs/memory_block.hpp>

#include <cassert>
#include <new>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// References to blocks that a device may still use. If there is no memory to store a reference, it
/// is never released.
class kept_blocks {
public:
  void add(memory_block_ptr block) noexcept {
    assert(block != nullptr);
    try {
      blocks_.push_back(block);
    } catch (const std::bad_alloc&) {
      static_cast<void>(block.detach());
    }
  }
  void clear() noexcept { blocks_.clear(); }

private:
  std::vector<memory_block_ptr> blocks_;
};

} // namespace asio_rdma::detail
