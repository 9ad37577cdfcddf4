// SPDX-License-Identifier: BSL-1.0
#include "iwarp/protocol_error.hpp"

namespace soft::iwarp {
namespace {

const char* describe_rdmap(std::uint8_t code) noexcept {
  switch (static_cast<rdmap_error_code>(code)) {
  case rdmap_error_code::invalid_stag:
    return "RDMAP: invalid STag";
  case rdmap_error_code::base_or_bounds_violation:
    return "RDMAP: base or bounds violation";
  case rdmap_error_code::access_rights_violation:
    return "RDMAP: access rights violation";
  case rdmap_error_code::stag_not_associated_with_stream:
    return "RDMAP: STag not associated with the stream";
  case rdmap_error_code::to_wrap:
    return "RDMAP: tagged offset wraps";
  case rdmap_error_code::invalid_rdmap_version:
    return "RDMAP: invalid version";
  case rdmap_error_code::unexpected_opcode:
    return "RDMAP: unexpected opcode";
  case rdmap_error_code::catastrophic_stream:
    return "RDMAP: catastrophic error of the stream";
  case rdmap_error_code::catastrophic_global:
    return "RDMAP: catastrophic error, global";
  case rdmap_error_code::stag_cannot_be_invalidated:
    return "RDMAP: STag cannot be invalidated";
  case rdmap_error_code::unspecific:
    return "RDMAP: unspecific error";
  }
  return "RDMAP: unassigned error code";
}

const char* describe_tagged(std::uint8_t code) noexcept {
  switch (static_cast<ddp_tagged_code>(code)) {
  case ddp_tagged_code::invalid_stag:
    return "DDP: invalid STag";
  case ddp_tagged_code::base_or_bounds_violation:
    return "DDP: base or bounds violation";
  case ddp_tagged_code::stag_not_associated_with_stream:
    return "DDP: STag not associated with the stream";
  case ddp_tagged_code::to_wrap:
    return "DDP: tagged offset wraps";
  case ddp_tagged_code::invalid_ddp_version:
    return "DDP: invalid version of a tagged segment";
  }
  return "DDP: unassigned error code of a tagged buffer";
}

const char* describe_untagged(std::uint8_t code) noexcept {
  switch (static_cast<ddp_untagged_code>(code)) {
  case ddp_untagged_code::invalid_qn:
    return "DDP: invalid queue number";
  case ddp_untagged_code::invalid_msn_no_buffer:
    return "DDP: no buffer for the message sequence number";
  case ddp_untagged_code::invalid_msn_range:
    return "DDP: message sequence number out of range";
  case ddp_untagged_code::invalid_mo:
    return "DDP: invalid message offset";
  case ddp_untagged_code::message_too_long:
    return "DDP: message too long for the buffer";
  case ddp_untagged_code::invalid_ddp_version:
    return "DDP: invalid version of an untagged segment";
  }
  return "DDP: unassigned error code of an untagged buffer";
}

const char* describe_mpa(std::uint8_t code) noexcept {
  switch (static_cast<mpa_error_code>(code)) {
  case mpa_error_code::connection_lost:
    return "MPA: TCP connection closed, terminated or lost";
  case mpa_error_code::crc:
    return "MPA: CRC error";
  case mpa_error_code::marker_and_length_mismatch:
    return "MPA: marker and ULPDU length mismatch";
  case mpa_error_code::invalid_start_frame:
    return "MPA: invalid request or reply frame";
  case mpa_error_code::local_catastrophic:
    return "MPA: local catastrophic error";
  case mpa_error_code::insufficient_ird:
    return "MPA: insufficient IRD resources";
  case mpa_error_code::no_matching_rtr:
    return "MPA: no matching RTR option";
  }
  return "MPA: unassigned error code";
}

} // namespace

const char* describe(const protocol_error& e) noexcept {
  switch (e.layer) {
  case error_layer::rdmap:
    if (e.type == static_cast<std::uint8_t>(rdmap_error_type::local_catastrophic))
      return "RDMAP: local catastrophic error";
    return e.type <= static_cast<std::uint8_t>(rdmap_error_type::remote_operation)
               ? describe_rdmap(e.code)
               : "RDMAP: unassigned error type";
  case error_layer::ddp:
    switch (static_cast<ddp_error_type>(e.type)) {
    case ddp_error_type::local_catastrophic:
      return "DDP: local catastrophic error";
    case ddp_error_type::tagged_buffer:
      return describe_tagged(e.code);
    case ddp_error_type::untagged_buffer:
      return describe_untagged(e.code);
    }
    return "DDP: unassigned error type";
  case error_layer::llp:
    return e.type == 0 ? describe_mpa(e.code) : "MPA: unassigned error type";
  }
  return "unassigned error layer";
}

} // namespace soft::iwarp
