// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_FUZZ_WIRE_HPP
#define SOFT_TEST_WIRE_FUZZ_WIRE_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace soft::test {

/// The effects of the inputs so far.
struct reached {
  std::size_t writes = 0;        ///< inputs that changed memory which the peer may write
  std::size_t window_writes = 0; ///< inputs that changed memory by a window
  std::size_t receives = 0;      ///< messages that came to a receive
  std::size_t fetches = 0;       ///< READs and atomics of the device that succeeded
  std::size_t answers = 0; ///< inputs that the device answered with more than a Terminate message
  std::size_t terminates = 0; ///< inputs that the device answered with a Terminate message alone
  std::size_t direct = 0;     ///< reads of the device that placed bytes of a message directly
};

/// Connects a queue pair, of type RC or UC, perhaps with a shared receive queue, to a peer that
/// follows the input: segments with chosen keys, offsets, lengths and numbers, any bytes, and
/// requests and deregistrations of the device's side, whose memory has windows, too. A segment of
/// more than 8 KiB comes in two pieces, with something else in between. Aborts if the
/// peer changes or gets memory that it may not, if a request does not complete exactly once, or if
/// the connection does not end. Returns 0. `patience`: how long the peer waits, after each request
/// of the device's side, for what that sends.
///
/// With libfuzzer.cpp and -fsanitize=fuzzer it is a libFuzzer target.
int fuzz_wire(const std::uint8_t* data, std::size_t size,
              std::chrono::milliseconds patience = std::chrono::milliseconds(1));

const reached& reached_so_far() noexcept;

} // namespace soft::test

#endif
