// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_LIMITS_HPP
#define SOFT_DEVICE_LIMITS_HPP

namespace soft::limits {

// Limits that the device reports, and keeps, with any personality. An entry of a queue takes memory
// only once the queue is made.
inline constexpr int queue_pairs = 1 << 16;
inline constexpr int work_requests = 1 << 14;
inline constexpr int completion_queues = 1 << 16;
inline constexpr int completions = 1 << 20;
inline constexpr int regions = 1 << 20;
inline constexpr int domains = 1 << 16;
inline constexpr int shared_receive_queues = 1 << 16;
inline constexpr int addresses = 256; ///< of the GID table: a route has 8 bits for an index
inline constexpr int partitions = 8;  ///< of the P_Key table: each is the default one

} // namespace soft::limits

#endif
