// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_DATAGRAMS_HPP
#define SOFT_WIRE_DATAGRAMS_HPP

#include "engine/engine.hpp"

#include <cstdint>
#include <memory>

namespace soft {

/// The socket by which the datagrams of other processes reach the queue pairs of a block of
/// numbers.
///
/// Datagrams go by sockets of unix(7), not by UDP: a UDP socket drops datagrams while its process
/// waits for a processor, where an adapter would deliver them. A socket of unix(7) makes the sender
/// wait. So datagrams reach processes of this machine alone. The engine must be locked.
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

} // namespace soft

#endif
