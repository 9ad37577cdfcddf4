// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/crc32c.hpp"
#include "iwarp/ddp.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

/// The bytes of the largest ULPDU whose FPDU fits into a TCP segment, without markers.
///
/// @param segment  bytes of payload in a TCP segment
/// Source: RFC 5044, section 4.5
constexpr std::size_t largest_ulpdu_of(std::size_t segment) noexcept {
  const std::size_t overhead = ulpdu_length_size + crc32c::size + segment % 4;
  return segment < overhead ? 0 : segment - overhead;
}

/// One RDMAP message to send, without its payload.
struct outgoing_message {
  opcode op = opcode::send;
  std::uint32_t length = 0; ///< Bytes of payload, within the opcode's limits.
  /// Of a tagged message: the STag of the sink's buffer. Of a send that invalidates: the STag to
  /// invalidate.
  std::uint32_t stag = 0;
  std::uint64_t tagged_offset = 0; ///< Of a tagged message.
};

/// One FPDU to send. On the wire it is the header, the payload and the trailer.
struct outgoing_segment {
  /// 0 to 3 bytes of padding and the CRC.
  static constexpr std::size_t max_trailer = 3 + crc32c::size;

  std::uint32_t offset = 0; ///< Where the payload begins in the message.
  std::uint32_t length = 0; ///< Bytes of payload.
  bool last = true;         ///< The last segment of the message.
  std::uint8_t header_size = 0;
  std::uint8_t trailer_size = 0;
  std::array<std::byte, max_fpdu_header> header_bytes{};
  std::array<std::byte, max_trailer> trailer_bytes{};

  std::span<const std::byte> header() const noexcept { return {header_bytes.data(), header_size}; }
  /// Complete after `fpdu_writer::seal`.
  std::span<const std::byte> trailer() const noexcept {
    return {trailer_bytes.data(), trailer_size};
  }
  /// Bytes on the wire.
  std::size_t size() const noexcept { return std::size_t(header_size) + length + trailer_size; }
};

/// The sending side of a stream: cuts RDMAP messages into FPDUs. The writer numbers the untagged
/// messages of each queue. It never sees the payload, unless to compute the CRC.
///
///     writer.start({.op = opcode::send, .length = n});
///     outgoing_segment s;
///     while (writer.next(s)) {
///       // parts: bytes s.offset to s.offset + s.length of the message
///       writer.seal(s, parts);
///       // sendmsg: s.header(), parts, s.trailer()
///     }
///
/// Source: RFC 5044, sections 4.1 and 4.4; RFC 5041, sections 4 and 5.2
class fpdu_writer {
public:
  /// The limits of a ULPDU, in bytes. The smaller one has room for any message of a fixed size. The
  /// length field has room for more than the larger one, and a receiver takes that.
  /// Source: RFC 5044, sections 3 and 4.5
  static constexpr std::size_t least_ulpdu = 128;
  static constexpr std::size_t largest_ulpdu = 64768;

  /// @param crc        whether the peers have agreed on CRCs
  /// @param max_ulpdu  bytes of header and payload in one segment, at most; a value outside of
  ///                   the limits is replaced by the limit
  explicit fpdu_writer(bool crc, std::size_t max_ulpdu = largest_ulpdu) noexcept;

  /// Changes the size of the segments that `next` has not yet produced.
  void set_max_ulpdu(std::size_t max_ulpdu) noexcept;

  /// Begins a message and takes its message sequence number.
  ///
  /// Returns false, and changes nothing, if the message before it is not complete or if the length
  /// is outside of the opcode's limits.
  bool start(const outgoing_message& message) noexcept;

  /// Produces the next segment of the message, up to its trailer.
  ///
  /// The payload of a segment that is not the last one is a multiple of 4 bytes, so only the last
  /// segment has padding. A message without payload has one segment. Returns false if all segments
  /// of the message have been produced.
  bool next(outgoing_segment& s) noexcept;

  /// Writes the trailer of a segment.
  ///
  /// @param payload  the payload of the segment, `s.length` bytes in any number of parts; it is not
  ///                 read if the peers have not agreed on CRCs, and may then be empty
  void seal(outgoing_segment& s,
            std::span<const std::span<const std::byte>> payload) const noexcept;

  /// Drops the segments of the message that `next` has not produced, so that a Terminate can follow
  /// the last FPDU. Send nothing but a Terminate then.
  void abandon() noexcept { idle_ = true; }

  /// Whether no message is in progress.
  bool idle() const noexcept { return idle_; }
  bool crc() const noexcept { return crc_; }

  /// The number of the next message of a queue. The first one is 1.
  std::uint32_t msn(queue_number queue) const noexcept {
    return msn_[static_cast<std::size_t>(queue)];
  }
  /// Sets the number of the next message of a queue, for tests.
  void set_msn(queue_number queue, std::uint32_t msn) noexcept {
    msn_[static_cast<std::size_t>(queue)] = msn;
  }

private:
  std::array<std::uint32_t, queues> msn_{1, 1, 1, 1};
  outgoing_message message_;
  std::uint32_t message_msn_ = 0;
  std::uint32_t produced_ = 0; // bytes of the message
  std::size_t max_ulpdu_ = largest_ulpdu;
  bool idle_ = true;
  bool crc_;
};

} // namespace soft::iwarp
