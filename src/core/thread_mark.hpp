// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace asio_rdma::detail {

[[gnu::tls_model("initial-exec")]] inline constinit thread_local char mark_of_this_thread = 0;

/// Identifies the calling thread: an address that no other living thread has.
inline const void* thread_mark() noexcept { return &mark_of_this_thread; }

} // namespace asio_rdma::detail
