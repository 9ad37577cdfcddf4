// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_FUZZ_CM_HPP
#define SOFT_TEST_WIRE_FUZZ_CM_HPP

#include <cstddef>
#include <cstdint>

namespace soft::test {

/// The effects of the inputs so far.
struct cm_reached {
  std::size_t requests = 0;    ///< peers' requests that the program got
  std::size_t accepted = 0;    ///< of these, those that became a connection
  std::size_t refused = 0;     ///< connections to the listener that the device ended by itself
  std::size_t established = 0; ///< requests of the program that became a connection
  std::size_t rejected = 0;    ///< and those that the peer rejected
  std::size_t failed = 0;      ///< and those that ended by a mistake of the peer
};

/// Plays a peer of rdma_cm by the input: a client of the device's listener, or a server to which
/// the device connects. The peer sends a start frame of MPA with chosen fields and private data,
/// perhaps with bytes changed or missing, or any bytes; then messages or any bytes; and ends its
/// side. The program takes requests, accepts, rejects, disconnects or destroys, by the input, too.
/// Aborts if the program gets another peer's private data, an event that does not fit or none, or
/// if objects are left. Returns 0.
///
/// With libfuzzer.cpp and -fsanitize=fuzzer it is a libFuzzer target.
int fuzz_cm(const std::uint8_t* data, std::size_t size);

const cm_reached& cm_reached_so_far() noexcept;

} // namespace soft::test

#endif
