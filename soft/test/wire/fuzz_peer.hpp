// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_FUZZ_PEER_HPP
#define SOFT_TEST_WIRE_FUZZ_PEER_HPP

#include "fuzz_input.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <sys/socket.h>
#include <unistd.h>

namespace soft::test {

/// A peer of the device: a connected socket, and what the device has sent.
class fuzz_peer {
public:
  explicit fuzz_peer(int socket) : socket_(socket) { require(socket_ >= 0, "a socket"); }
  fuzz_peer(const fuzz_peer&) = delete;
  fuzz_peer& operator=(const fuzz_peer&) = delete;
  ~fuzz_peer() { close(socket_); }

  /// Sends in pieces of so many bytes. The device may have ended the connection.
  void send(std::span<const std::byte> all, std::size_t piece) {
    while (!all.empty()) {
      const ssize_t n = uninterrupted(
          [&] { return ::send(socket_, all.data(), std::min(piece, all.size()), MSG_NOSIGNAL); });
      if (n < 0)
        return require(errno == EPIPE || errno == ECONNRESET, "send");
      all = all.subspan(static_cast<std::size_t>(n));
    }
  }
  void send(std::span<const std::byte> all) { send(all, all.size()); }
  void end() { shutdown(socket_, SHUT_WR); }
  /// Waits for bytes of the device. Returns their number; 0: the device has ended the connection;
  /// -1: the device sends nothing.
  ssize_t take(std::span<std::byte> to) {
    if (!wait_for(socket_))
      return -1;
    const ssize_t n = recv(socket_, to.data(), to.size(), MSG_DONTWAIT);
    return n < 0 && errno == ECONNRESET ? 0 : n;
  }
  /// Waits for bytes of the device, or its end of the connection: false.
  bool receive() {
    std::array<std::byte, 4096> b;
    const ssize_t n = take(b);
    require(n >= 0, "the connection does not end");
    if (n == 0)
      return false;
    heard_.insert(heard_.end(), b.begin(), b.begin() + n);
    return true;
  }
  const bytes& heard() const { return heard_; }
  int socket() const { return socket_; }

private:
  int socket_;
  bytes heard_;
};

} // namespace soft::test

#endif
