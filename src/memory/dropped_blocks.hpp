// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/registered_buffer.hpp>

#include <utility>

namespace asio_rdma::detail {

/// References to memory that are dropped while a mutex is locked. If a reference is the last one to
/// the user's memory, that memory is released by the destructor, which is called without the mutex.
/// The user's deleter may therefore close and destroy any object. It must not block: it would delay
/// operations of the library.
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

  bool empty() const noexcept { return first_ == nullptr; }

  void drop(registered_buffer& memory) noexcept { drop(memory.release()); }
  /// Ends the access, and drops its reference.
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
