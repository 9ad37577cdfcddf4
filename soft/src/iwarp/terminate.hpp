// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/ddp.hpp"
#include "iwarp/protocol_error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace soft::iwarp {

/// The payload of a Terminate message: an error, and the headers of the segment that caused it. The
/// message has the opcode `terminate`, so it is sent on queue 2.
///
/// | error                                          | quoted                                    |
/// |------------------------------------------------|-------------------------------------------|
/// | of the LLP; local catastrophic                 | nothing                                   |
/// | invalid DDP version                            | nothing: the header's layout is unknown   |
/// | remote protection, caused by a read request    | segment length, DDP header, read request  |
/// | any other                                      | segment length, DDP header                |
///
/// Source: RFC 5040, section 4.8, figure 10
class terminate {
public:
  /// Makes the message for an error.
  ///
  /// @param fpdu_header   the ULPDU length and the DDP header of the segment that caused the error,
  ///                      as received: `fpdu_reader::fpdu_header()`. Empty if no segment did.
  ///                      Nothing is quoted from an incomplete header.
  /// @param read_request  the 28 bytes of payload of that segment if it is a read request, else
  ///                      empty. After a part of the data has been sent, RFC 5040 requires the
  ///                      offsets and the length of the remaining part.
  explicit terminate(const protocol_error& error, std::span<const std::byte> fpdu_header = {},
                     std::span<const std::byte> read_request = {}) noexcept;

  /// Decodes the payload of a received message.
  ///
  /// Returns no value if the payload is shorter than 4 bytes. Quoted headers that are incomplete
  /// are left out, for the error is valid without them. Linux siw on a little-endian host writes
  /// the control fields in the order of its bit fields. This order is recognized if the message
  /// quotes headers; else `error()` has layer and type exchanged. Source: Linux,
  /// drivers/infiniband/sw/siw/iwarp.h, struct iwarp_terminate
  static std::optional<terminate> decode(std::span<const std::byte> payload) noexcept;

  const protocol_error& error() const noexcept { return error_; }

  /// The length of the segment that caused the error: header and payload. No value if not quoted.
  std::optional<std::uint16_t> segment_length() const noexcept;
  /// The quoted DDP header: 14 or 18 bytes, or empty.
  std::span<const std::byte> ddp_header() const noexcept;
  /// The quoted payload: the 28 bytes of a read request, or empty. Other peers may quote the
  /// payload of an atomic request.
  std::span<const std::byte> rdma_header() const noexcept;

  /// The payload of the message, 4 to 52 bytes. Valid as long as the object.
  std::span<const std::byte> bytes() const noexcept { return {bytes_.data(), size_}; }

private:
  terminate() = default;

  std::array<std::byte, max_terminate_size> bytes_{};
  std::size_t size_ = terminate_control_size;
  std::size_t ddp_size_ = 0;
  std::size_t rdma_size_ = 0;
  bool length_ = false;
  protocol_error error_;
};

} // namespace soft::iwarp
