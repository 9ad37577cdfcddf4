// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <optional>

namespace soft::iwarp {

/// The layer that detected an error. Source: RFC 5040, section 4.8
enum class error_layer : std::uint8_t { rdmap = 0, ddp = 1, llp = 2 };

/// The error types of RDMAP. Source: RFC 5040, section 4.8
enum class rdmap_error_type : std::uint8_t {
  local_catastrophic = 0,
  remote_protection = 1,
  remote_operation = 2
};

/// The error codes of RDMAP. Source: RFC 5040, section 4.8
enum class rdmap_error_code : std::uint8_t {
  invalid_stag = 0x00,
  base_or_bounds_violation = 0x01,
  access_rights_violation = 0x02,
  stag_not_associated_with_stream = 0x03,
  to_wrap = 0x04,
  invalid_rdmap_version = 0x05,
  unexpected_opcode = 0x06,
  catastrophic_stream = 0x07, ///< Catastrophic, localized to the RDMAP stream.
  catastrophic_global = 0x08,
  stag_cannot_be_invalidated = 0x09,
  unspecific = 0xff
};

/// The error types of DDP. Source: RFC 5041, section 7.2
enum class ddp_error_type : std::uint8_t {
  local_catastrophic = 0,
  tagged_buffer = 1,
  untagged_buffer = 2
};

/// The error codes of DDP for tagged buffers. Source: RFC 5041, section 7.2
enum class ddp_tagged_code : std::uint8_t {
  invalid_stag = 0x00,
  base_or_bounds_violation = 0x01,
  stag_not_associated_with_stream = 0x02,
  to_wrap = 0x03,
  invalid_ddp_version = 0x04
};

/// The error codes of DDP for untagged buffers. Source: RFC 5041, section 7.2
enum class ddp_untagged_code : std::uint8_t {
  invalid_qn = 0x01,
  invalid_msn_no_buffer = 0x02,
  invalid_msn_range = 0x03,
  invalid_mo = 0x04,
  message_too_long = 0x05,
  invalid_ddp_version = 0x06
};

/// The error codes of MPA; the only error type of MPA is 0.
/// Source: RFC 5044, section 8; RFC 6581, section 8
enum class mpa_error_code : std::uint8_t {
  connection_lost = 0x01,
  crc = 0x02,
  marker_and_length_mismatch = 0x03,
  invalid_start_frame = 0x04,
  local_catastrophic = 0x05,
  insufficient_ird = 0x06,
  no_matching_rtr = 0x07
};

/// An error as a Terminate message names it. Source: RFC 5040, section 4.8
struct protocol_error {
  error_layer layer = error_layer::rdmap;
  std::uint8_t type = 0; ///< 4 bits
  std::uint8_t code = 0;

  friend bool operator==(const protocol_error&, const protocol_error&) = default;
};

/// No value: no error.
using failure = std::optional<protocol_error>;

constexpr protocol_error rdmap_error(rdmap_error_type type, rdmap_error_code code) noexcept {
  return {error_layer::rdmap, static_cast<std::uint8_t>(type), static_cast<std::uint8_t>(code)};
}
constexpr protocol_error ddp_error(ddp_tagged_code code) noexcept {
  return {error_layer::ddp, static_cast<std::uint8_t>(ddp_error_type::tagged_buffer),
          static_cast<std::uint8_t>(code)};
}
constexpr protocol_error ddp_error(ddp_untagged_code code) noexcept {
  return {error_layer::ddp, static_cast<std::uint8_t>(ddp_error_type::untagged_buffer),
          static_cast<std::uint8_t>(code)};
}
constexpr protocol_error mpa_error(mpa_error_code code) noexcept {
  return {error_layer::llp, 0, static_cast<std::uint8_t>(code)};
}

/// A short English text for logs. The text of an unassigned layer, type or code says so.
const char* describe(const protocol_error& e) noexcept;

} // namespace soft::iwarp
