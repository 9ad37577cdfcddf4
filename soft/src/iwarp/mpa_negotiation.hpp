// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/mpa_start.hpp"
#include "iwarp/protocol_error.hpp"

#include <cstdint>

namespace soft::iwarp {

/// The wishes and abilities of one side of a connection. No side uses markers.
struct start_options {
  /// Ask for CRCs. CRCs are used if either side asks for them. The specification wants the question
  /// by default, and its absence only where TCP itself is as safe. Source: RFC 5044, section 4.4
  bool crc = false;
  bool enhanced = true; ///< Of the initiator: revision 2 with IRD and ORD, else revision 1.
  /// Of the initiator: ask for peer-to-peer mode, in which the acceptor may send as soon as it has
  /// received the RTR message. An acceptor always agrees.
  bool peer_to_peer = false;
  /// The RTR messages that this side can send, or receive.
  rtr_kinds rtr = rtr_kinds::rdma_write | rtr_kinds::rdma_read;
  std::uint16_t ird = 0;     ///< Inbound reads that this side accepts.
  std::uint16_t ord = 0;     ///< Outbound reads that this side wants to issue.
  std::uint16_t max_ird = 0; ///< Of the initiator: the largest IRD to which it can be raised.
};

/// The result of a start-up.
struct start_result {
  start_error error = start_error::none; ///< If set, the members below `crc` have no meaning.
  /// Both sides send and check CRCs. A Terminate message has one, too, if both sides have asked
  /// before the error.
  bool crc = false;
  bool peer_to_peer = false;
  /// In peer-to-peer mode: the one RTR message that the initiator sends, and that the acceptor
  /// waits for before it sends anything. Else `none`: the acceptor waits for any first message of
  /// the initiator. Source: RFC 5044, section 7.1.2; RFC 6581, section 9.2
  rtr_kinds rtr = rtr_kinds::none;
  std::uint16_t ird = 0; ///< Inbound reads that this side must accept.
  std::uint16_t ord = 0; ///< Outbound reads that this side may have outstanding.
};

/// An acceptor's answer.
struct start_answer {
  start_result result;
  start_frame reply; ///< A rejection if `result.error` is set. The caller adds private data.
};

/// The request of an initiator, without private data.
///
/// In peer-to-peer mode with an RDMA read as RTR, the ORD is at least 1. An ORD of 0 stays if an
/// RDMA write will do: then the request offers that only. Source: RFC 5044, section 7.1.1; RFC
/// 6581, sections 6, 9.1 and 9.2
start_frame make_request(const start_options& own) noexcept;

/// The answer of an acceptor to a request.
///
/// IRD is the smaller of the own IRD and the peer's ORD, and vice versa. If the peer does not
/// negotiate a value, the own value is used and the reply does not negotiate it either. If the RTR
/// message is an RDMA read, the IRD is at least 1. If no RTR message of the request is supported,
/// the reply offers an RDMA write, and the initiator ends the connection. Of two kinds the reply
/// has the RDMA write, as siw's and cxgb4's; irdma's has the RDMA read. Errors: `markers`. Source:
/// RFC 5044, section 7.1.1; RFC 6581, sections 9.1, 9.2 and 10
start_answer answer(const start_frame& request, const start_options& own) noexcept;

/// A rejection of a request, without private data. Source: RFC 5044, section 7.1.2, rule 2
start_frame make_rejection(const start_frame& request) noexcept;

/// An initiator's conclusion from a reply.
///
/// @param request  the frame that it has sent
/// Errors: `rejected`; `markers`; `reply_mismatch`; `insufficient_ird` if the reply's ORD is above
/// `own.max_ird` and `own.ird`; `no_matching_rtr` in peer-to-peer mode.
/// Source: RFC 5044, sections 7.1.1 and 7.1.2, rule 3; RFC 6581, sections 9.1, 9.2 and 10
start_result conclude(const start_frame& request, const start_frame& reply,
                      const start_options& own) noexcept;

/// The error for a Terminate message, which the initiator sends before it closes the connection. No
/// value if the connection is closed without one, as after a frame that is invalid.
/// Source: RFC 5044, section 8, code 4; RFC 6581, sections 8, 9.1 and 9.2
failure to_protocol_error(start_error e) noexcept;

} // namespace soft::iwarp
