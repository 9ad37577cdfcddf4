// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/protocol_error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

constexpr std::uint8_t ddp_version = 1;
constexpr std::uint8_t rdmap_version = 1;

/// Bytes of the ULPDU length at the start of an FPDU.
constexpr std::size_t ulpdu_length_size = 2;
/// Bytes of a DDP header, with RDMAP's fields in it. Source: RFC 5041, sections 4.2 and 4.3
constexpr std::size_t tagged_header_size = 14;
constexpr std::size_t untagged_header_size = 18;
/// Bytes before the payload of an FPDU, at most.
constexpr std::size_t max_fpdu_header = ulpdu_length_size + untagged_header_size;
/// Bytes of an FPDU up to RDMAP's control field, which tell the size of the header.
constexpr std::size_t fpdu_control_size = 4;

/// Bytes of padding after a ULPDU: an FPDU is a multiple of 4 bytes. Source: RFC 5044, section 4.1
constexpr std::size_t padding_of(std::size_t ulpdu) noexcept {
  return (4 - (ulpdu_length_size + ulpdu) % 4) % 4;
}

/// The operation of an RDMAP message.
/// Source: RFC 5040, section 4.1; RFC 7306, section 4.1
enum class opcode : std::uint8_t {
  rdma_write = 0x0,
  rdma_read_request = 0x1,
  rdma_read_response = 0x2,
  send = 0x3,
  send_with_invalidate = 0x4,
  send_with_se = 0x5, ///< With solicited event.
  send_with_se_and_invalidate = 0x6,
  terminate = 0x7,
  immediate_data = 0x8,
  immediate_data_with_se = 0x9,
  atomic_request = 0xa,
  atomic_response = 0xb,
  /// A send with 4 bytes of immediate data, which InfiniBand has and iWARP lacks. No specification
  /// assigns the opcode, so any other device answers with a Terminate. The immediate data takes the
  /// place of the STag to invalidate.
  send_with_immediate = 0xc,
  send_with_se_and_immediate = 0xd
};

constexpr std::size_t opcodes = 14;

/// The queue numbers of untagged messages.
/// Source: RFC 5040, section 4.1; RFC 7306, sections 4.1 and 10.2
enum class queue_number : std::uint8_t {
  send = 0,            ///< Sends and immediate data.
  read_request = 1,    ///< Read requests and atomic requests.
  terminate = 2,       ///< Terminates.
  atomic_response = 3, ///< Atomic responses.
};

constexpr std::size_t queues = 4;

/// The bytes of messages that have a fixed size. Source: RFC 5040, sections 4.4 and 4.8; RFC 7306,
/// sections 5.2.1, 5.2.2 and 6.2
constexpr std::size_t read_request_size = 28;
constexpr std::size_t immediate_data_size = 8;
constexpr std::size_t atomic_request_size = 52;
constexpr std::size_t atomic_response_size = 12;
/// A Terminate that quotes the largest headers: those of an atomic request.
constexpr std::size_t terminate_control_size = 4;
constexpr std::size_t max_terminate_size =
    terminate_control_size + max_fpdu_header + atomic_request_size;

/// The bytes of a DDP message, at most. Source: RFC 5041, section 5.2
constexpr std::uint32_t max_message_size = 0xffffffff;

/// The properties of an opcode.
struct opcode_traits {
  bool tagged = false;
  queue_number queue = queue_number::send; ///< Of an untagged message.
  std::uint32_t least = 0;                 ///< Bytes of the message, at least.
  std::uint32_t most = max_message_size;   ///< Bytes of the message, at most.
  bool invalidates = false;                ///< The header has an STag to invalidate.
  bool solicited = false;                  ///< The message asks for a solicited event.
};

/// The properties of `op`, which must be one of the enumerators.
const opcode_traits& traits(opcode op) noexcept;

constexpr bool is_immediate(opcode op) noexcept {
  return op == opcode::immediate_data || op == opcode::immediate_data_with_se;
}

/// Bytes of the DDP header of a segment of `op`.
inline std::size_t ddp_header_size(opcode op) noexcept {
  return traits(op).tagged ? tagged_header_size : untagged_header_size;
}

/// The header of one DDP segment, with RDMAP's fields. Fields that do not belong to the opcode are
/// zero. Source: RFC 5041, section 4; RFC 5040, section 4.1
struct segment_header {
  opcode op = opcode::send;
  bool last = true;  ///< The last segment of its message.
  bool first = true; ///< The first segment of its message. Not in the header; see `segment_order`.

  /// Of a tagged segment: the STag of the data sink's buffer. Of an untagged segment that
  /// invalidates: the STag to invalidate.
  std::uint32_t stag = 0;
  std::uint64_t tagged_offset = 0; ///< Of a tagged segment: where the payload goes.

  std::uint32_t msn = 0; ///< Of an untagged segment: the message sequence number of its queue.
  /// Where the payload belongs in the message. An untagged segment carries it; that of a tagged
  /// segment is computed by `segment_order`.
  std::uint32_t message_offset = 0;

  std::uint32_t length = 0; ///< Bytes of payload in this segment.

  bool tagged() const noexcept { return traits(op).tagged; }
  queue_number queue() const noexcept { return traits(op).queue; }

  friend bool operator==(const segment_header&, const segment_header&) = default;
};

/// Writes the ULPDU length and the DDP header.
///
/// Precondition: the header and `h.length` together are at most 65535 bytes.
/// Returns the bytes written: 16 of a tagged segment, 20 of an untagged one.
/// Source: RFC 5044, section 4.1; RFC 5041, section 4
std::size_t encode(const segment_header& h, std::span<std::byte, max_fpdu_header> to) noexcept;

/// Checks the first 4 bytes of an FPDU.
///
/// @param header_size  receives the bytes before the payload, if there is no error
/// Errors: invalid DDP version; invalid RDMAP version; unexpected opcode, also if the opcode and
/// the tagged flag do not fit; MPA `marker_and_length_mismatch` if the ULPDU is shorter than its
/// header. Reserved bits are ignored, as the specifications require.
/// Source: RFC 5041, section 4.1; RFC 5040, section 4.1
failure check_control(std::span<const std::byte, fpdu_control_size> control,
                      std::size_t& header_size) noexcept;

/// Decodes the bytes before the payload of an FPDU, for which `check_control` has found no error.
///
/// Errors: invalid queue number, if it is above 3; unexpected opcode, if the queue is another
/// one's. `result.first` and a tagged segment's `message_offset` are not set. Source: RFC 5041,
/// sections 4.2 and 4.3
failure decode(std::span<const std::byte> fpdu_header, segment_header& result) noexcept;

} // namespace soft::iwarp
