// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/connecting/cm_support.hpp"

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace test {

/// A process of this program that acts as the peer: it runs the test case with the tag `[.peer]`,
/// of which the program has one. It has its own devices and queue pairs, and the network of the
/// thread that started it.
class peer_process {
public:
  /// Starts the process, which gets the port of `to`.
  explicit peer_process(const endpoint& to);
  ~peer_process() { kill(); }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  void kill();
  /// Stops the process until it is killed; its device continues.
  void stop();

private:
  pid_t pid_ = 0;
};

/// The port that the parent gave this process; empty if this is not a peer process.
std::optional<std::uint16_t> port_of_tester();

/// The address of memory as private data of a connection, and the reverse.
private_data described(const remote_buffer& memory);
remote_buffer described(const private_data& data);

} // namespace test
