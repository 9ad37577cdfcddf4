// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/fpdu_reader.hpp"
#include "iwarp/fpdu_writer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace soft::iwarp::test {

using bytes = std::vector<std::byte>;
using random_engine = std::mt19937_64;

/// Bytes from hexadecimal digits; spaces are ignored.
bytes hex(std::string_view digits);
/// Hexadecimal digits, for messages.
std::string to_hex(std::span<const std::byte> from);
void append(bytes& to, std::span<const std::byte> more);
/// `size` bytes that depend on `seed`.
bytes pattern(std::size_t size, std::uint64_t seed);
/// A number from `least` to `most`.
std::uint64_t number(random_engine& random, std::uint64_t least, std::uint64_t most);

/// An FPDU around any ULPDU, with a right length, padding and CRC.
bytes fpdu(std::span<const std::byte> ulpdu, bool crc);
/// An FPDU whose header may contradict the rules of messages.
bytes fpdu(const segment_header& h, std::span<const std::byte> payload, bool crc);
/// All FPDUs of a message.
bytes fpdus(fpdu_writer& writer, const outgoing_message& m, std::span<const std::byte> payload);

/// A message and its payload.
struct sample {
  outgoing_message message;
  bytes payload;
};

/// The STag and the size of the memory of `memory_sink`.
constexpr std::uint32_t sink_stag = 0x1234;
constexpr std::size_t sink_size = 4096;

/// A random message of any opcode. The tagged ones fit into a `memory_sink`.
sample random_sample(random_engine& random);

/// A sink with one tagged buffer, for tests. It gives each untagged message a buffer of its own, in
/// parts of `part` bytes, and records the complete messages.
class memory_sink : public segment_sink {
public:
  struct message {
    opcode op;
    std::uint32_t stag;
    bytes payload;

    friend bool operator==(const message&, const message&) = default;
  };

  begin_result begin_segment(const segment_header& h, placement& to) noexcept override;
  failure end_segment(const segment_header& h) noexcept override;

  std::size_t part = 1000;               ///< Bytes of a part of a buffer.
  std::size_t untagged_size = sink_size; ///< Bytes of a buffer for an untagged message.
  int not_now = 0;                       ///< The calls of `begin_segment` to answer with `not_now`.
  bool discard = false;
  failure begin_failure;
  failure end_failure;
  bytes tagged = bytes(sink_size);
  std::vector<message> messages;     ///< Complete ones. The payload of tagged ones is empty.
  std::vector<segment_header> begun; ///< The segments of `begin_segment`.
  std::vector<segment_header> ended; ///< The segments of `end_segment`.

private:
  std::array<bytes, queues> untagged_;
};

} // namespace soft::iwarp::test
