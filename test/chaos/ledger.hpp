// SPDX-License-Identifier: BSL-1.0
// The memory that the processes of a chaos run share: counts, and the driver's wishes.
#pragma once

#include "device/support/shared_memory.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace chaos {

enum class role : std::uint32_t { server, messages, bytes, memory, leases };
inline constexpr std::size_t servers = 2;
inline constexpr std::size_t kept = 1;    ///< The server that lives as long as the run.
inline constexpr std::size_t clients = 8; ///< Two of each kind. Each uses both servers by turns.
inline constexpr std::size_t processes = servers + clients;
inline constexpr role role_of(std::size_t place) {
  return place < servers ? role::server : static_cast<role>(1 + (place - servers) % 4);
}

/// Numbers of the objects that a process has on the software device, by kind, and of its open
/// descriptors.
inline constexpr std::size_t kinds_of_objects = 8;

/// Exit statuses of the processes.
inline constexpr int device_gone = 3; ///< The device was removed: the process is started again.
inline constexpr int wrong = 70;      ///< A byte or a count was wrong.

struct entry {
  std::atomic<std::uint64_t> rounds{0}; ///< That have ended as they should.
  std::array<std::atomic<std::uint64_t>, servers> rounds_with{}; ///< Of a client: by server.
  std::atomic<std::uint64_t> broken{0};                          ///< That a fault has ended.
  std::atomic<std::uint64_t> items{0};    ///< Messages, or operations on memory, compared.
  std::atomic<std::uint64_t> bytes{0};    ///< Compared.
  std::atomic<std::uint32_t> ticks{0};    ///< Of the process's timer, each 20 ms.
  std::atomic<std::uint64_t> resident{0}; ///< Bytes, now.
  std::atomic<std::uint64_t> early{0};    ///< Bytes, when the process had worked for some seconds.
  /// Of a client: the messages of its last one-way round that the server's program has taken, and
  /// above them, from bit 32 on, that round's number.
  std::atomic<std::uint64_t> taken_one_way{0};
  std::atomic<std::uint64_t> reports{0}; ///< One-way rounds whose close reported all as delivered.
  std::array<std::atomic<std::uint64_t>, kinds_of_objects> objects{}; ///< Of a server.

  /// Of a client: the streams that it has begun, and for its last ones the number of that which the
  /// client's or the server's program has ended before all bytes came back.
  std::atomic<std::uint32_t> streams{0};
  std::array<std::atomic<std::uint32_t>, 256> ended_early{};
  void end_early(std::uint32_t stream) {
    auto& last = ended_early[stream % ended_early.size()];
    for (std::uint32_t n = last; n < stream && !last.compare_exchange_weak(n, stream);) {
    }
  }
  /// Also true if that is not known any more.
  bool has_ended_early(std::uint32_t stream) const {
    return ended_early[stream % ended_early.size()] >= stream;
  }

  /// Settings of the software device for the process to take over, and which of them it has taken.
  std::array<char, 120> settings{};
  std::atomic<std::uint32_t> wanted{0}, taken{0};
};

struct server_entry {
  std::atomic<std::uint32_t> messages_port{0}, bytes_port{0}, nodes_port{0}, leases_port{0};
  std::atomic<std::uint32_t> starts{0};
};

struct ledger {
  std::array<entry, processes> of;
  std::array<server_entry, servers> server;
  std::atomic<bool> tell{false}; ///< The driver asks the kept server what it has.
};

using shared_ledger = test::shared_memory<ledger>;

inline std::byte byte_at(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u + seed * 40503u) >> 11 & 0xff);
}

/// Precedes the bytes of a message, of a stream, and of leased memory. It is also the private data
/// of the connections of the latter two.
struct label {
  std::uint32_t client = 0;
  std::uint32_t number = 0;  ///< Of the message, the stream, or the round.
  std::uint64_t bytes = 0;   ///< With the label.
  std::uint64_t one_way = 0; ///< Of a message that is not sent back: the number of its round.
  std::uint64_t seed() const { return client * 1000003ull + number; }
};

/// Ends the process because something was not as it was sent.
[[noreturn]] void report_wrong(const char* what);

/// The label, and the bytes that follow it.
std::vector<std::byte> bytes_of(const label& l);

/// Compares all of them.
void compare_all(const label& l, std::span<const std::byte> bytes);
/// Compares bytes from `at` on, counted from the label.
void compare(const label& l, std::uint64_t at, std::span<const std::byte> bytes);

/// Run the process until its driver ends it. `place`: in the ledger.
int serve(shared_ledger& shared, std::size_t place);
int use(shared_ledger& shared, std::size_t place, std::uint32_t seed);

} // namespace chaos
