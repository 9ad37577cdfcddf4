// SPDX-License-Identifier: BSL-1.0
// The memory that a victim and its tester share.
#pragma once

#include "device/support/shared_memory.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace test {

/// The victim's counters, and the tester's wishes. Both processes map it.
struct hostile_report {
  /// The interval of the victim's timer.
  static constexpr std::chrono::milliseconds tick{5};

  enum : std::uint32_t { starting, ready, failed };

  // Written by the victim.
  std::atomic<std::uint32_t> state{starting};
  std::atomic<std::uint32_t> messages_port{0}, bytes_port{0}, nodes_port{0};
  std::atomic<std::uint32_t> admitted_port{0}; ///< Of messages; no connector is admitted.
  std::atomic<std::uint64_t> ticks{0};
  std::atomic<std::uint64_t> accepted{0};    ///< Connections and streams.
  std::atomic<std::uint64_t> unadmitted{0};  ///< Connections that `admit` should have prevented.
  std::atomic<std::uint64_t> turned_away{0}; ///< Requests for which an object could not be opened.
  std::atomic<std::uint64_t> locked{0};      ///< Acquisitions of the lock that no peer attacks.
  std::atomic<std::uint64_t> borrowed{0};    ///< Requests for a peer's memory that have ended.
  std::atomic<std::uint64_t> fatal{0};       ///< Connections that ended with `queue_pair_fatal`.
  /// The longest times between two ticks, without the time in which the machine did not run the
  /// process: of the context's thread on a processor, and of the clock.
  std::atomic<std::uint64_t> busy_ns{0}, gap_ns{0};
  /// The time in which the machine has not run the process, and the context's thread
  /// (hostile/machine.hpp).
  std::atomic<std::uint64_t> late_ns{0}, waited_ns{0};
  std::atomic<std::uint64_t> measured{0}; ///< The last wish for a measurement that was carried out.
  std::atomic<std::uint64_t> resident{0}; ///< Bytes in use, after what is unused was given back.
  std::atomic<std::uint64_t> heap{0};     ///< Bytes of the heap in use then.
  std::atomic<std::uint64_t> pooled{0};   ///< Bytes of the pool in use.
  /// The most since the tester set them to 0: of those bytes, and of the handshakes under way of an
  /// acceptor.
  std::atomic<std::uint64_t> most_pooled{0}, most_handshakes{0};
  std::atomic<std::uint64_t> pool_limit{0};
  std::atomic<std::uint64_t> damaged{0}; ///< Bytes of guarded memory that have changed.
  // Where a peer aims that knows more than it should.
  std::atomic<std::uint64_t> guarded_address{0};
  std::atomic<std::uint32_t> guarded_key{0};
  std::atomic<std::uint64_t> attacked_lock{0}; ///< The offset of a lock in the segment.

  // Written by the tester.
  std::atomic<std::uint64_t> measure{0};
};

using shared_report = shared_memory<hostile_report>;

} // namespace test
