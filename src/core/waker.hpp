// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cassert>
#include <thread>

namespace asio_rdma::detail {

/// A descriptor by which other threads wake its thread from poll(2).
class waker {
public:
  static waker& of_this_thread() {
    static thread_local waker w;
    return w;
  }

  waker(const waker&) = delete;
  ~waker() { ::close(descriptor_); }

  /// -1 if no descriptor was available; then the thread waits for its timeout.
  int descriptor() const noexcept { return descriptor_; }
  /// Makes the descriptor readable. On the waker's own thread, does nothing.
  void wake() noexcept {
    if (std::this_thread::get_id() != thread_)
      ::eventfd_write(descriptor_, 1);
  }
  void clear() noexcept {
    assert(std::this_thread::get_id() == thread_);
    eventfd_t n = 0;
    ::eventfd_read(descriptor_, &n);
  }

private:
  waker() noexcept : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const int descriptor_;
  const std::thread::id thread_ = std::this_thread::get_id();
};

} // namespace asio_rdma::detail
