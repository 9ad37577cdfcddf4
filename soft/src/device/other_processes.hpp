// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_OTHER_PROCESSES_HPP
#define SOFT_DEVICE_OTHER_PROCESSES_HPP

#include "device/memory.hpp"

#include <cstdint>
#include <memory>

namespace soft {

struct queue_pair;

// Peers in other processes and on other machines, as a queue pair sees them. Folder wire/
// implements all of this. The engine must be locked.

/// A connection to a peer in another process.
class peer_wire {
public:
  virtual void attach(queue_pair& qp) = 0;
  /// The queue pair does not use the wire any more.
  virtual void detach() = 0;
  /// Sends the requests of the queue pair, as long as the connection takes bytes.
  virtual void pump() = 0;
  /// Neither sends nor receives from now on. The connection stays, so that the peer gets no answer.
  virtual void fall_silent() = 0;
  /// Resets the connection.
  virtual void kill() = 0;

protected:
  ~peer_wire() = default;
};
/// The wire that stands for the peer's queue pair number, or nullptr.
std::shared_ptr<peer_wire> find_wire(std::uint32_t number);

/// The search for the peer of a queue pair that the program connects itself. It calls
/// `queue_pair::use_wire`.
class peer_search {
public:
  virtual ~peer_search() = default;
};
/// `another_search`: the queue pair has lost its peer.
enum search_kind { first_search, another_search };
std::unique_ptr<peer_search> search_peer(queue_pair& qp, search_kind kind);

/// Sends a datagram to the process of the queue pair `to`. False: that process is behind; the queue
/// pair `from` runs again. A datagram without a receiver is lost.
bool send_datagram(queue_pair& from, std::uint32_t to, const spans& whole);
/// Sends a datagram to another machine, likewise. `whole` is what another process of this machine
/// would get.
bool send_to_network(queue_pair& from, const datagram_way& way, const spans& whole);
/// From now on datagrams of other processes, and of other machines if the port is free, reach the
/// queue pair with this number. An error number.
int hear_datagrams(std::uint32_t number);

/// Takes a number for a queue pair that no other one of this machine has. 0: none is left, or no
/// descriptor.
std::uint32_t take_number();
void give_back_number(std::uint32_t number);
/// The part of a number that does not depend on the process: queue pairs that are made in the same
/// order have the same.
std::uint32_t order_of_number(std::uint32_t number) noexcept;

} // namespace soft

#endif
