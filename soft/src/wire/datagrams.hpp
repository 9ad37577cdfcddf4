// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_DATAGRAMS_HPP
#define SOFT_WIRE_DATAGRAMS_HPP

#include "engine/engine.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace soft {

namespace roce {
struct datagram;
}

/// The socket by which the datagrams of other processes reach the queue pairs of a block of
/// numbers.
///
/// Within a machine datagrams go by sockets of unix(7), not by UDP: a UDP socket drops datagrams
/// while its process waits for a processor, where an adapter would deliver them. A socket of
/// unix(7) makes the sender wait. The engine must be locked.
class datagram_receiver final : public descriptor {
public:
  /// An error number.
  static int make(std::uint32_t block, std::unique_ptr<datagram_receiver>& result);
  ~datagram_receiver();

private:
  explicit datagram_receiver(int socket) : socket_(socket) {}
  void ready(std::uint32_t events) override;

  const int socket_;
};

/// Gives a datagram to its queue pair. False: this process has no such queue pair.
bool deliver(const roce::datagram& d, std::span<const std::byte> whole,
             std::span<const std::byte> payload);
/// Passes a datagram of another machine on to the process that has its queue pair. That process
/// does not pass it on again. A datagram is lost if no process has the number, or that process is
/// behind: the sender cannot be made to wait.
void pass_on(std::uint32_t to, std::span<const std::byte> whole);

/// From now on datagrams of other machines reach this process, if the UDP port 4791 is free or
/// other processes of this user have it. They share the port: each passes on the datagrams that are
/// not its own.
void hear_network();

} // namespace soft

#endif
