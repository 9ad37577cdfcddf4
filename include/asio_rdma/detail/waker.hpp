// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

namespace asio_rdma::detail {

/// Wakes its thread from poll(2), by a descriptor that becomes readable.
class waker {
public:
  static waker& of_this_thread() {
    static thread_local waker w;
    return w;
  }

  waker(const waker&) = delete;
  ~waker() { ::close(descriptor_); }

  /// -1 if the system has no more; then nothing wakes the thread before its time.
  int descriptor() const noexcept { return descriptor_; }
  /// Does nothing on the thread itself, which is awake.
  void wake() noexcept {
    if (std::this_thread::get_id() != thread_)
      ::eventfd_write(descriptor_, 1);
  }
  void clear() noexcept {
    eventfd_t n = 0;
    ::eventfd_read(descriptor_, &n);
  }

private:
  waker() noexcept : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const int descriptor_;
  const std::thread::id thread_ = std::this_thread::get_id();
};

} // namespace asio_rdma::detail
