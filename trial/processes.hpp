// SPDX-License-Identifier: BSL-1.0
// Processes of the trial, and the sockets between them.
#pragma once

#include <functional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace trial {

/// A child process that runs a function.
class process {
public:
  process() = default;
  /// `body` must not return.
  explicit process(const std::function<void()>& body);
  process(process&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  process& operator=(process&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~process() { kill(); }

  /// Waits for the end, for so many seconds, and kills it then. Returns its wait status.
  int wait(int seconds);
  /// Kills the process, and returns its wait status. If the kernel does not end it within a few
  /// seconds, as one that waits in a driver, it is left.
  int kill();

private:
  pid_t id_ = 0;
};

/// Runs a function in a child process. The kernel forgets the process when it ends.
void run_detached(const std::function<void()>& body);

/// Reads until the end of the descriptor; false if that takes longer.
bool read_until_end(int descriptor, double seconds, std::string& to);

/// Connects to a TCP port, and sends a line. Throws `std::runtime_error`.
int connect_to(const std::string& host, const std::string& port, const std::string& line);
/// A UDP socket whose own address is the one by which this machine reaches the host. Nothing is
/// sent. Negative if the host is not reached.
int socket_towards(const std::string& host, const std::string& port);
/// Listens at a TCP port of all addresses.
int listen_at(const std::string& port);
int port_of(int listener);
/// Reads a line of at most 200 characters.
std::string read_line(int socket);

/// The names of this machine, of its user, and of the peer.
std::vector<std::string> personal_names(const std::string& peer);

} // namespace trial
