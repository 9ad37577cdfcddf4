// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "cm_support.hpp"

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace test {

/// This program once more, as the peer: it runs the test case "the peer that is killed". It has
/// devices and queue pairs of its own, and the network of the thread that started it.
class peer_process {
public:
  /// It is told the port.
  explicit peer_process(const endpoint& to);
  ~peer_process() { kill(); }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  void kill();
  /// Until it is killed it does nothing any more, and its device what devices do.
  void stop();

private:
  pid_t pid_ = 0;
};

/// The port that this process was told, if it is such a peer.
std::optional<std::uint16_t> port_of_tester();

/// Where memory is, as private data of a connection, and back.
private_data described(const remote_buffer& memory);
remote_buffer described(const private_data& data);

} // namespace test
