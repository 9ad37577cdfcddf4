// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_IN_FORCE_HPP
#define SOFT_DEVICE_IN_FORCE_HPP

#include "settings/settings.hpp"

#include <atomic>

namespace soft {

/// The settings in force. They stay in memory after others have replaced them.
const settings& current() noexcept;
inline const personality& habits() noexcept { return current().kind; }
/// READs and atomics that a queue pair may have outstanding.
inline std::uint8_t most_reads() noexcept { return static_cast<std::uint8_t>(habits().reads); }

/// Reads ASIO_RDMA_SOFT, unless it was read or `soft_set` was called. 0; or EINVAL, and the first
/// time a message on stderr.
int load_settings();

/// The effect of the faults of a place at one occasion.
struct incident {
  int failure = 0; ///< a completion status, an error number or a reason of rejection; 0: none
  int event = -1;  ///< an `ibv_event_type`; -1: none
  bool drop = false, kill = false;
  std::chrono::nanoseconds delay{0}, flap{0};
};
/// Counts an occasion for the faults of `at`. From any thread.
incident occasion(place at) noexcept;

/// A mask that tells the fast paths whether there is anything for them to look up: the places that
/// have faults, and the following bits.
extern std::atomic<std::uint32_t> attention __attribute__((visibility("hidden")));
inline constexpr std::uint32_t is_late = 1u << 27;    ///< WRITEs are placed after their completion
inline constexpr std::uint32_t is_at_post = 1u << 28; ///< `settings::at_post`
inline constexpr std::uint32_t is_copied = 1u << 29;  ///< polls copy small messages
inline constexpr std::uint32_t is_timed = 1u << 30;   ///< the direct wire has a latency or a rate
inline constexpr std::uint32_t is_removed = 1u << 31; ///< a context's device was removed
inline bool needs_attention(std::uint32_t bits) noexcept {
  return (attention.load(std::memory_order_relaxed) & bits) != 0;
}

static_assert(static_cast<unsigned>(place::count_) <= 27);

} // namespace soft

#endif
