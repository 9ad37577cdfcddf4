// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace asio_rdma::detail {

#if !defined(__clang__) && __has_builtin(__builtin_thread_pointer)
/// Identifies the calling thread: an address that no other living thread has.
inline const void* thread_mark() noexcept { return __builtin_thread_pointer(); }
#else
inline constinit thread_local char mark_of_this_thread = 0;
inline const void* thread_mark() noexcept { return &mark_of_this_thread; }
#endif

} // namespace asio_rdma::detail
