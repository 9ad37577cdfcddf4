// SPDX-License-Identifier: BSL-1.0
// A library to preload, libasio_rdma_erdma_limits.so: devices have the limits of erdma.
#pragma once

/// How often the limits have refused something in this process.
struct erdma_refusals {
  unsigned queue_pairs; ///< too many elements, inline bytes or entries
  unsigned posts;       ///< more elements or inline bytes than the limits, or windows
};
/// The function is there if the library is preloaded.
extern "C" erdma_refusals get_erdma_refusals() noexcept;
#pragma weak get_erdma_refusals
