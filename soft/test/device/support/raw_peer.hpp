// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_RAW_PEER_HPP
#define SOFT_TEST_DEVICE_RAW_PEER_HPP

#include "iwarp/ddp.hpp"
#include "iwarp/fpdu_writer.hpp"
#include "iwarp/mpa_negotiation.hpp"
#include "iwarp/mpa_start.hpp"
#include "iwarp/terminate.hpp"

#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <span>
#include <string>
#include <vector>

namespace soft::test {

/// A peer of iWARP that is a socket and the test itself, so that it may send anything. Without
/// CRCs. A socket that gives nothing for 20 s fails the test.
class raw_peer {
public:
  /// Connects to a port of 127.0.0.1. `segment`: the bytes of a TCP segment; 0: as it comes.
  explicit raw_peer(const std::string& port, int segment = 0);
  /// Takes a connection of a listening socket.
  explicit raw_peer(int listener);
  /// Connects to a queue pair of this machine, whose program has connected it to the queue pair
  /// `number_of_raw_peer`.
  explicit raw_peer(const ibv_qp& qp);
  ~raw_peer();
  raw_peer(const raw_peer&) = delete;
  raw_peer& operator=(const raw_peer&) = delete;

  void send(std::span<const std::byte> bytes);
  void send(const iwarp::start_frame& f) { send(iwarp::encode(f).view()); }
  /// The request to a queue pair of this machine, with the numbers and the type of both.
  void send_request(const ibv_qp& qp, const iwarp::start_options& o);
  /// One message of few bytes.
  void send(const iwarp::outgoing_message& m, std::span<const std::byte> payload);
  static std::vector<std::byte> fpdu(iwarp::fpdu_writer& w, const iwarp::outgoing_message& m,
                                     std::span<const std::byte> payload);

  iwarp::start_frame start(bool reply);
  struct segment {
    iwarp::segment_header header;
    std::size_t ulpdu = 0; ///< bytes
    std::vector<std::byte> payload;
  };
  segment next();
  /// The Terminate message that comes next.
  iwarp::terminate next_terminate();
  /// Whether the connection ends in an orderly way here.
  bool at_end();

  int socket() const noexcept { return socket_; }
  iwarp::fpdu_writer writer{false};

private:
  void prepare();
  std::vector<std::byte> read(std::size_t bytes);
  int socket_;
};

/// A number below those of the device's queue pairs: the lower one of two connects.
inline constexpr std::uint32_t number_of_raw_peer = 1;

/// A listening socket of 127.0.0.1, and its port.
std::pair<int, std::string> listen_raw();

} // namespace soft::test

#endif
