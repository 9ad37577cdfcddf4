// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_LOSS_RELAY_HPP
#define SOFT_TEST_LOSS_RELAY_HPP

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace soft::test {

/// The two directions of a connection, as an index.
enum direction : unsigned { to_listener, to_connector };

/// A file descriptor.
class descriptor {
public:
  explicit descriptor(int fd) : fd_(fd) {}
  ~descriptor();
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  operator int() const noexcept { return fd_; }

private:
  int fd_;
};

/// A TCP port of 127.0.0.1 that carries connections to another port, one at a time, in a thread of
/// its own. It may end a connection after any byte.
class relay {
public:
  enum class ending { reset, close };
  struct loss {
    direction of;
    std::uint64_t after; ///< so many bytes of this direction have been passed
    ending by;
  };
  struct plan {
    std::optional<loss> lost;
    std::uint32_t pieces = 0; ///< the seed of the sizes in which bytes are passed; 0: as they come
  };
  struct options {
    int segment = 0;        ///< bytes of a TCP segment; 0: as the machine has it
    int receive_buffer = 0; ///< bytes that wait for the relay; 0: as the machine has it
  };
  using bytes = std::vector<std::byte>;

  relay(const std::string& port, const options& o);
  explicit relay(const std::string& port) : relay(port, options()) {}
  ~relay();
  relay(const relay&) = delete;
  relay& operator=(const relay&) = delete;

  const std::string& port() const noexcept { return port_; }
  /// Carries the next connection.
  void start(const plan& p);
  /// Waits until the connection has ended. Returns the bytes that were passed in each direction.
  std::array<bytes, 2> finish();

  /// From now on the bytes of a direction wait. Then the waiting ones go on, in one piece if they
  /// have less than 64 KiB.
  void hold(direction d) { held_[d] = true; }
  void release(direction d);

private:
  struct flow;
  void carry(const plan& p);
  void wake();

  const options options_;
  const std::uint16_t to_;
  descriptor listener_, wake_;
  std::string port_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
  std::array<std::atomic<bool>, 2> held_{};
  std::array<bytes, 2> passed_;
  std::exception_ptr failure_;
};

} // namespace soft::test

#endif
