// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/crc32c.hpp"
#include "iwarp/ddp.hpp"
#include "iwarp/segment_order.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

/// The memory that the payload of one segment goes to, in order.
class placement {
public:
  static constexpr std::size_t max_parts = 32;

  /// Appends memory. An empty part is ignored. Returns false, and changes nothing, if there are
  /// `max_parts` parts.
  bool add(std::span<std::byte> part) noexcept;

  std::size_t size() const noexcept { return bytes_; } ///< Bytes of all parts.
  std::span<const std::span<std::byte>> parts() const noexcept {
    return {parts_.data() + first_, count_ - first_};
  }

private:
  friend class fpdu_reader;

  void clear() noexcept;
  void shorten(std::size_t bytes) noexcept;             // to the first `bytes` bytes
  std::span<std::byte> take(std::size_t most) noexcept; // removes bytes from the first part

  std::array<std::span<std::byte>, max_parts> parts_;
  std::size_t first_ = 0; // the parts before it are full
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

/// The treatment of the payload of a segment.
enum class begin_action : std::uint8_t {
  place,   ///< Into the memory of the placement.
  discard, ///< The payload is dropped. The segment still ends with `end_segment`.
  not_now, ///< No receive is posted: the reader stops until it is resumed.
  fail     ///< The segment violates the protocol.
};

/// The answer of a sink to a new segment.
struct begin_result {
  begin_action action = begin_action::place;
  protocol_error error; ///< If the action is `fail`.

  static begin_result place() noexcept { return {begin_action::place, {}}; }
  static begin_result discard() noexcept { return {begin_action::discard, {}}; }
  static begin_result not_now() noexcept { return {begin_action::not_now, {}}; }
  static begin_result fail(const protocol_error& e) noexcept { return {begin_action::fail, e}; }
};

/// The receiver of segments. A sink must not call its reader from these functions.
class segment_sink {
public:
  /// Provides the memory for the payload of a segment, whose header has been checked.
  ///
  /// The memory must stay valid until the reader returns from `end_segment`, fails, or is
  /// destroyed. If the sink places a segment and the memory is smaller than `h.length`, the reader
  /// fails: DDP `message_too_long` or `base_or_bounds_violation`. Memory beyond `h.length` is not
  /// used. If the action is `not_now`, the function is called again for the same segment.
  /// @param to  empty at the call
  virtual begin_result begin_segment(const segment_header& h, placement& to) noexcept = 0;

  /// Reports that the payload of a segment is placed or dropped, and that its CRC is right.
  ///
  /// If `h.last`, the message is complete: `h.message_offset + h.length` is its size. An error
  /// makes the reader fail.
  virtual failure end_segment(const segment_header& h) noexcept = 0;

protected:
  segment_sink() = default;
  segment_sink(const segment_sink&) = default;
  segment_sink& operator=(const segment_sink&) = default;
  ~segment_sink() = default;
};

enum class reader_state : std::uint8_t {
  reading, ///< The reader takes more bytes.
  stopped, ///< The sink has answered `not_now`: the reader takes no bytes until `resume`.
  failed   ///< `error` is set. The reader takes no more bytes.
};

/// The receiving side of a stream: finds the FPDUs in the byte stream, checks them, and places
/// their payload into the memory that a sink provides.
///
/// The caller gives the reader bytes with `feed`. To avoid the copy of a large payload, the caller
/// may also read from the socket into `targets()` and report the bytes with `placed`, without CRCs:
///
///     // only if reader.targets() is not empty
///     // iov: reader.targets(), then a buffer of the caller
///     n = readv(...);
///     direct = min(n, reader.payload_pending());
///     reader.placed(direct);
///     reader.feed(the n - direct bytes in the buffer);
///
/// With CRCs there are no targets. The program may change its memory at any time, so a CRC of that
/// memory need not be the CRC of the bytes that came.
///
/// Payload is placed before its CRC is verified: after a CRC error, the memory of the segment has
/// undefined contents. `end_segment` is called only if the CRC is right.
/// Source: RFC 5044, sections 4.1, 4.4 and 8; RFC 5041, sections 5.2, 5.4 and 7.1
class fpdu_reader {
public:
  /// @param crc   whether the peers have agreed on CRCs; if not, the CRC field is ignored
  /// @param sink  must outlive the reader
  fpdu_reader(bool crc, segment_sink& sink) noexcept : sink_(sink), crc_on_(crc) {}

  /// Takes bytes of the stream, any number.
  ///
  /// Returns the bytes taken: all, unless the reader stops or fails. The caller must give the
  /// remaining bytes again after `resume`. Errors: those of `check_control`, `decode`,
  /// `segment_order::accept` and the sink; MPA `crc`.
  std::size_t feed(std::span<const std::byte> bytes) noexcept;

  /// Asks the sink again about the segment that it has not accepted. Does nothing unless the reader
  /// is stopped.
  reader_state resume() noexcept;

  reader_state state() const noexcept { return state_; }
  /// The error. Precondition: the reader has failed.
  const protocol_error& error() const noexcept { return error_; }

  /// The bytes of payload that the current segment still lacks, 0 outside of a payload. These bytes
  /// come next in the stream.
  std::size_t payload_pending() const noexcept { return stage_ == stage::payload ? pending_ : 0; }
  /// The memory for the pending payload: `payload_pending()` bytes, or empty if the payload is
  /// discarded, or if the peers have agreed on CRCs. Valid until the next call of another function.
  std::span<const std::span<std::byte>> targets() const noexcept;
  /// Reports that the caller has written the next `bytes` bytes of the stream to `targets()`.
  ///
  /// Precondition: the targets have that many bytes. Errors: as `feed`.
  void placed(std::size_t bytes) noexcept;
  /// Drops the rest of the current payload: the reader uses its memory no more. The segment still
  /// ends with `end_segment`.
  void discard() noexcept { discard_ = true; }

  /// Whether the stream may end here: no FPDU and no message is incomplete.
  bool at_boundary() const noexcept;

  /// The ULPDU length and the DDP header of the current or last FPDU, for `terminate`. Incomplete
  /// if the reader failed before it had all of the header.
  std::span<const std::byte> fpdu_header() const noexcept { return {header_.data(), have_header_}; }
  /// The decoded header of the current or last segment.
  const segment_header& segment() const noexcept { return segment_; }

  segment_order& order() noexcept { return order_; }

private:
  enum class stage : std::uint8_t { header, payload, trailer };

  void header_complete() noexcept;
  void begin() noexcept;
  void payload_complete() noexcept;
  void trailer_complete() noexcept;
  void fail(const protocol_error& e) noexcept;

  segment_sink& sink_;
  bool crc_on_;
  bool discard_ = false;
  reader_state state_ = reader_state::reading;
  stage stage_ = stage::header;
  bool between_ = true; // the next byte begins an FPDU; `header_` is that of the last one
  std::size_t have_header_ = 0;
  std::size_t want_header_ = fpdu_control_size;
  std::size_t pending_ = 0; // bytes of payload
  std::size_t have_trailer_ = 0;
  std::size_t want_trailer_ = 0;
  crc32c crc_;
  std::array<std::byte, max_fpdu_header> header_{};
  std::array<std::byte, 3 + crc32c::size> trailer_{};
  segment_header segment_;
  segment_order order_;
  placement to_;
  protocol_error error_;
};

} // namespace soft::iwarp
