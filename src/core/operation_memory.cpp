// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/core/operation_memory.hpp>

#include <cassert>
#include <utility>

namespace asio_rdma::detail {
namespace {

// If operations start on one thread and complete on another, the other thread would keep all
// blocks.
constexpr std::uint32_t most_kept = 1024;

// While a thread may not keep blocks, before its first one and when it ends, there is no room.
void set_room(std::uint32_t room) noexcept {
  for (operation_blocks::size_class& c : thread_operation_blocks.classes) {
    assert(c.first == nullptr);
    c.room = room;
  }
}

struct cleaner {
  cleaner() noexcept { set_room(most_kept); }
  cleaner(const cleaner&) = delete;
  ~cleaner() {
    for (operation_blocks::size_class& c : thread_operation_blocks.classes)
      while (c.first != nullptr) {
        operation_blocks::block* const b = c.first;
        unpoison(b, sizeof(*b));
        c.first = b->next;
        ::operator delete(b);
      }
    set_room(0);
  }
};

constinit thread_local bool has_begun = false;

} // namespace

// No destructor: operations may be freed during the destruction of the thread's other objects.
constinit thread_local operation_blocks thread_operation_blocks;

void* allocate_operation_slowly(std::size_t bytes) {
  const std::size_t n = operation_blocks::class_of(bytes);
  return ::operator new(n < operation_blocks::size_classes ? operation_blocks::block_bytes(n)
                                                           : bytes);
}

void deallocate_operation_slowly(void* memory, std::size_t bytes) noexcept {
  assert(memory != nullptr);
  if (operation_blocks::class_of(bytes) < operation_blocks::size_classes &&
      !std::exchange(has_begun, true)) {
    [[maybe_unused]] thread_local const cleaner when_the_thread_ends;
    return deallocate_operation(memory, bytes);
  }
  ::operator delete(memory);
}

} // namespace asio_rdma::detail
