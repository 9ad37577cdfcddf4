// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

/// An error of the start-up of a connection.
enum class start_error : std::uint8_t {
  none = 0,
  key,                  ///< Not the expected frame: the key is wrong.
  revision,             ///< The MPA revision is neither 1 nor 2.
  private_data_length,  ///< More than 512 bytes of private data.
  enhanced_data_length, ///< Enhanced, but fewer than the 4 bytes of the enhanced data.
  rejected,             ///< The peer has rejected the request.
  markers,              ///< The peer requires markers, which are not supported.
  reply_mismatch,       ///< The reply's revision or enhanced flag differs from the request's.
  insufficient_ird,     ///< The peer wants to issue more reads than this side can accept.
  no_matching_rtr       ///< The peers have no RTR message in common.
};

/// A short English text for logs.
const char* describe(start_error e) noexcept;

/// The kinds of the RTR (ready to receive) message, a set of bits. The message is the first FPDU of
/// the initiator in peer-to-peer mode. Source: RFC 6581, section 9.2
enum class rtr_kinds : std::uint8_t {
  none = 0,
  rdma_write = 1,        ///< An RDMA write of no bytes.
  rdma_read = 2,         ///< An RDMA read of no bytes.
  zero_length_fulpdu = 4 ///< A send of no bytes. Neither this implementation nor siw offers it.
};

constexpr rtr_kinds operator|(rtr_kinds a, rtr_kinds b) noexcept {
  return static_cast<rtr_kinds>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr rtr_kinds operator&(rtr_kinds a, rtr_kinds b) noexcept {
  return static_cast<rtr_kinds>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
constexpr bool has(rtr_kinds set, rtr_kinds kind) noexcept {
  return (set & kind) != rtr_kinds::none;
}

/// An MPA request or reply frame. Source: RFC 5044, section 7.1.1; RFC 6581, sections 6 and 9
struct start_frame {
  static constexpr std::size_t key_size = 16;
  static constexpr std::size_t header_size = 20;  ///< Key, flags, revision and length.
  static constexpr std::size_t enhanced_size = 4; ///< The enhanced data.
  static constexpr std::size_t max_data = 512;    ///< Private data with the enhanced data.
  static constexpr std::size_t max_size = header_size + max_data;
  /// In `ird` and `ord`: the value is not negotiated. Source: RFC 6581, section 9.1
  static constexpr std::uint16_t not_negotiated = 0x3fff;

  bool reply = false;
  bool rejected = false; ///< Of a reply.
  bool markers = false;  ///< The sender of the frame requires markers in what it receives.
  bool crc = false;      ///< The sender of the frame asks for CRCs.
  std::uint8_t revision = 2;

  bool enhanced = false; ///< The frame has the following values. Revision 2 only.
  std::uint16_t ird = 0; ///< Inbound reads that the sender of the frame accepts; 14 bits.
  std::uint16_t ord = 0; ///< Outbound reads that the sender of the frame issues; 14 bits.
  bool peer_to_peer = false;
  rtr_kinds rtr = rtr_kinds::none;

  /// The user's private data, without the enhanced data.
  std::span<const std::byte> private_data() const noexcept { return {data_.data(), data_size_}; }
  /// Bytes of private data, at most: 512, or 508 of an enhanced frame. Linux siw accepts 256, with
  /// the enhanced data. Source: RFC 5044, section 7.1.1; RFC 6581, section 9
  std::size_t max_private_data() const noexcept {
    return max_data - (enhanced ? enhanced_size : 0);
  }
  /// Copies private data into the frame. Set `enhanced` first. Returns false, and changes nothing,
  /// if there are more than `max_private_data()` bytes.
  bool set_private_data(std::span<const std::byte> data) noexcept;

private:
  std::array<std::byte, max_data> data_{};
  std::size_t data_size_ = 0;
};

/// An encoded frame.
struct start_bytes {
  std::array<std::byte, start_frame::max_size> bytes{};
  std::size_t size = 0;

  std::span<const std::byte> view() const noexcept { return {bytes.data(), size}; }
};

/// Encodes a frame. Reserved bits are zero.
///
/// Precondition: `f` is enhanced only if its revision is 2; the private data fits.
start_bytes encode(const start_frame& f) noexcept;

/// Reads one start-up frame from a byte stream.
class start_reader {
public:
  enum class status : std::uint8_t { more, done, failed };
  struct result {
    status state = status::more;
    std::size_t consumed = 0; ///< Bytes taken by this call. The bytes after a frame are not taken.
  };

  /// @param reply  whether a reply is expected, else a request
  explicit start_reader(bool reply) noexcept : reply_(reply) {}

  /// Takes bytes of the stream, any number.
  ///
  /// Errors, in `error()`: `key`, at the first wrong byte; `revision`; `private_data_length`;
  /// `enhanced_data_length`, except in a rejection. After an error or a whole frame, no more bytes
  /// are taken. Reserved bits, and the reject flag of a request, are ignored.
  /// Source: RFC 5044, sections 7.1.1 and 7.1.2, rules 5 and 9
  result feed(std::span<const std::byte> bytes) noexcept;

  start_error error() const noexcept { return error_; }
  /// The frame. Precondition: the reader is done.
  const start_frame& frame() const noexcept { return frame_; }

private:
  status fail(start_error e) noexcept;
  status header_complete() noexcept;
  status frame_complete() noexcept;

  bool reply_;
  status state_ = status::more;
  start_error error_ = start_error::none;
  std::size_t have_ = 0;
  std::size_t want_ = start_frame::header_size;
  std::array<std::byte, start_frame::max_size> bytes_{};
  start_frame frame_;
};

} // namespace soft::iwarp
