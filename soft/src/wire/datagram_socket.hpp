// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_DATAGRAM_SOCKET_HPP
#define SOFT_WIRE_DATAGRAM_SOCKET_HPP

#include "engine/engine.hpp"

#include <cstdint>
#include <set>
#include <sys/socket.h>

namespace soft {

struct queue_pair;

/// A socket by which queue pairs send datagrams. If it takes no datagram now, they wait for it, for
/// a second at most. Then their datagrams are lost. The engine must be locked.
class datagram_socket final : public descriptor {
public:
  enum class result { sent, behind, gone };
  /// Takes the socket.
  explicit datagram_socket(int socket) : socket_(socket) {}
  ~datagram_socket();

  /// Sends a datagram. `sent`: or it is lost. `behind`: the queue pair runs again. `gone`: the
  /// socket has lost its peer.
  result send(queue_pair& from, const msghdr& m);
  /// The same without waiting. `behind`: the datagram is not sent.
  result try_to_send(const msghdr& m);
  bool is_awaited() const noexcept;
  clock::time_point used() const noexcept { return used_; }

private:
  bool wait(queue_pair& from);
  void ready(std::uint32_t) override;
  void wake();

  const int socket_;
  std::set<std::uint32_t> waiting_; // numbers of queue pairs
  clock::time_point used_{}, behind_since_{};
};

} // namespace soft

#endif
