// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_OTHER_MACHINE_HPP
#define SOFT_TEST_DEVICE_OTHER_MACHINE_HPP

#include "roce/datagram.hpp"
#include "support/processes.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace soft::test {

/// Enters a network namespace whose only interface is loopback, with the addresses 192.0.2.2 and
/// 2001:db8::2 of its own, and where all addresses have a route. The process ends if it has not the
/// right.
void enter_namespace();
/// In a new network namespace: brings up loopback, with 127.0.0.1 and ::1 alone.
void set_up_loopback();
/// Runs a hidden test case, which calls `enter_namespace`, in a process of its own. Warns if there
/// is no right.
void check_in_namespace(const std::string& test_case, const child::variables& environment = {});

ibv_gid gid(const char* address);

/// Another machine, as far as a machine with loopback alone can have one: its packets have any
/// source, and packets to any address reach it. For a process in a namespace of its own.
class other_machine {
public:
  using bytes = std::vector<std::byte>;
  explicit other_machine(bool v6 = false);
  ~other_machine();
  other_machine(const other_machine&) = delete;
  other_machine& operator=(const other_machine&) = delete;

  /// Sends a packet of UDP, without UDP's checksum. `way.bytes` has no meaning.
  void send(const roce::route& way, std::uint16_t from, std::uint16_t to,
            std::span<const std::byte> payload);
  /// Sends a datagram of queue pairs with a payload of bytes `fill`, as it is, or changed by
  /// `change`, which gets the bytes of UDP before the CRC is made, or after it.
  struct changes {
    std::uint16_t source_port = 0xc000;
    void (*before_crc)(bytes&) = nullptr;
    void (*after_crc)(bytes&) = nullptr;
  };
  void send(const roce::datagram& d, std::byte fill, const changes& c);
  void send(const roce::datagram& d, std::byte fill) { send(d, fill, changes{}); }
  /// The next packet of UDP to an address that is not in the namespace, from its network header on;
  /// waits for it.
  bytes receive();

private:
  const bool v6_;
  int sends_, captures_;
};

} // namespace soft::test

#endif
