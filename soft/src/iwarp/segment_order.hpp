// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/ddp.hpp"

#include <array>
#include <cstdint>

namespace soft::iwarp {

/// The check that received segments form messages: one for each stream and direction.
///
/// Each untagged queue, the RDMA writes, and the RDMA read responses have one message at a time.
/// Messages of different queues may be interleaved.
class segment_order {
public:
  /// Checks the next segment and sets its `first`, and the `message_offset` of a tagged segment.
  ///
  /// Errors of an untagged segment: DDP `invalid_msn_range` if the message is not the next one of
  /// its queue, also if the message before it has no last segment; DDP `invalid_mo` if the payload
  /// does not follow that of the segment before; DDP `message_too_long` if the message has more
  /// bytes than its opcode allows; RDMAP `unexpected_opcode` if the opcode changes within a
  /// message; RDMAP `catastrophic_stream` if the last segment leaves the message too short for its
  /// opcode.
  /// Errors of a tagged segment: DDP `to_wrap` if the payload ends above 2^64; DDP `invalid_stag`
  /// if the STag changes within a message; DDP `base_or_bounds_violation` if the payload does not
  /// follow that of the segment before, or if the message has more than 2^32 - 1 bytes. The STag
  /// and the offset of a segment without payload are not checked.
  /// Source: RFC 5041, sections 4.2, 4.3, 5.2 and 7.1; RFC 5040, sections 4.1 and 7.2
  failure accept(segment_header& h) noexcept;

  /// Whether a message of the queue has begun and its last segment has not been accepted.
  bool in_message(queue_number queue) const noexcept {
    return untagged_[static_cast<std::size_t>(queue)].open;
  }

  /// Whether any message has begun and its last segment has not been accepted.
  bool in_any_message() const noexcept;

  /// The number of the message that the queue expects, or of the message that has begun. The first
  /// one is 1.
  std::uint32_t msn(queue_number queue) const noexcept {
    return untagged_[static_cast<std::size_t>(queue)].msn;
  }

  /// Sets the number of the next message of a queue, for tests.
  void set_msn(queue_number queue, std::uint32_t msn) noexcept {
    untagged_[static_cast<std::size_t>(queue)].msn = msn;
  }

private:
  struct untagged_message {
    std::uint32_t msn = 1;
    std::uint32_t received = 0; // bytes, while open
    opcode op = opcode::send;   // while open
    bool open = false;
  };
  struct tagged_message {
    std::uint64_t offset = 0; // of the next byte, while open
    std::uint32_t received = 0;
    std::uint32_t stag = 0;
    bool open = false;
  };

  failure accept_untagged(segment_header& h) noexcept;
  failure accept_tagged(segment_header& h) noexcept;

  std::array<untagged_message, queues> untagged_;
  tagged_message write_;
  tagged_message read_response_;
};

} // namespace soft::iwarp
