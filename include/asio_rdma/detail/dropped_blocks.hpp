// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/registered_buffer.hpp>

#include <utility>

namespace asio_rdma::detail {

/// Drops references to memory where a lock is held. If one is the last to memory of the user's,
/// that goes with this object, which is destroyed without the lock: its deleter may close and
/// destroy anything. It may not wait: operations of the library's own are held up meanwhile.
class dropped_blocks {
public:
  dropped_blocks() noexcept = default;
  dropped_blocks(dropped_blocks&& other) noexcept : first_(std::exchange(other.first_, nullptr)) {}
  dropped_blocks& operator=(dropped_blocks&&) = delete;
  ~dropped_blocks() {
    while (first_ != nullptr) {
      memory_block* const b = std::exchange(first_, first_->next);
      b->dispose(b);
    }
  }

  void drop(registered_buffer& memory) noexcept { drop(memory.release()); }
  /// Ends the access.
  void drop(buffer_access& access) noexcept { drop(access.end()); }

private:
  void drop(memory_block_ptr last) noexcept {
    memory_block* const b = last.detach();
    if (b == nullptr || !b->release())
      return;
    if (!b->of_user)
      return b->dispose(b);
    b->next = first_;
    first_ = b;
  }

  memory_block* first_ = nullptr;
};

} // namespace asio_rdma::detail
