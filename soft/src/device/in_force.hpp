// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_IN_FORCE_HPP
#define SOFT_DEVICE_IN_FORCE_HPP

#include "settings/settings.hpp"

#include <atomic>

namespace soft {

/// The settings in force. They stay in memory after others have replaced them.
const settings& current() noexcept;

/// Reads ASIO_RDMA_SOFT, unless it was read or `soft_set` was called. 0; or EINVAL, and the first
/// time a message on stderr.
int load_settings();

/// A mask that tells the fast paths whether there is anything for them to look up.
extern std::atomic<std::uint32_t> attention __attribute__((visibility("hidden")));
inline constexpr std::uint32_t is_timed = 1u << 30; ///< the direct wire has a latency or a rate
inline bool needs_attention(std::uint32_t bits) noexcept {
  return (attention.load(std::memory_order_relaxed) & bits) != 0;
}

} // namespace soft

#endif
