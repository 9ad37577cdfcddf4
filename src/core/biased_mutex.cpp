// SPDX-License-Identifier: BSL-1.0
#include "core/biased_mutex.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace asio_rdma::detail {
namespace {

constexpr char none_any_more = 0; // its address is no thread's mark

// Not nanosleep(2), which is a cancellation point: a thread may be cancelled (pthreads(7)).
void nap() noexcept {
  std::uint32_t never_changes = 0;
  timespec time{0, 50'000};
  syscall(SYS_futex, &never_changes, FUTEX_WAIT_PRIVATE, never_changes, &time, nullptr, 0);
}

long membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0); }

} // namespace

bool biased_mutex::prepare() noexcept {
  static const bool prepared = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  return prepared;
}

void biased_mutex::lock_shared() noexcept {
  mutex_.lock();
  const void* const owner = owner_.load(std::memory_order_relaxed);
  if (owner != nullptr && owner != &none_any_more) [[unlikely]]
    end_ownership();
}

void biased_mutex::lock_first() noexcept {
  lock_shared();
  if (owner_.load(std::memory_order_relaxed) == nullptr && prepare())
    owner_.store(thread_mark(), std::memory_order_relaxed);
}

// Called with `mutex_` locked. The owner announces itself in `inside_` and then reads `owner_`;
// this thread writes `owner_` and then reads `inside_`. The system call is a fence of both threads,
// so one of them sees the other. The owner does not touch the mutex once it has unlocked it,
// because the mutex may be destroyed then. So the owner wakes no thread, and this one looks again.
void biased_mutex::end_ownership() noexcept {
  owner_.store(&none_any_more, std::memory_order_relaxed);
  while (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    if (errno != ENOMEM)
      std::abort(); // both threads would be inside
    std::this_thread::yield();
  }
  for (unsigned looks = 0; inside_.load(std::memory_order_acquire) != nullptr; ++looks)
    looks < 100 ? std::this_thread::yield() : nap();
}

} // namespace asio_rdma::detail
