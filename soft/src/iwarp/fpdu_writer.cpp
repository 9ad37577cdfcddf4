// SPDX-License-Identifier: BSL-1.0
#include "iwarp/fpdu_writer.hpp"

#include <algorithm>
#include <cassert>

namespace soft::iwarp {

fpdu_writer::fpdu_writer(bool crc, std::size_t max_ulpdu) noexcept : crc_(crc) {
  set_max_ulpdu(max_ulpdu);
}

void fpdu_writer::set_max_ulpdu(std::size_t max_ulpdu) noexcept {
  max_ulpdu_ = std::clamp(max_ulpdu, least_ulpdu, largest_ulpdu);
}

bool fpdu_writer::start(const outgoing_message& message) noexcept {
  const opcode_traits& t = traits(message.op);
  if (!idle_ || message.length < t.least || message.length > t.most)
    return false;
  message_ = message;
  produced_ = 0;
  idle_ = false;
  if (!t.tagged)
    message_msn_ = msn_[static_cast<std::size_t>(t.queue)]++;
  return true;
}

bool fpdu_writer::next(outgoing_segment& s) noexcept {
  if (idle_)
    return false;
  const std::uint32_t left = message_.length - produced_;
  // Both headers, with the ULPDU length, are multiples of 4 bytes.
  const auto room = static_cast<std::uint32_t>((max_ulpdu_ - ddp_header_size(message_.op)) / 4 * 4);
  segment_header h;
  h.op = message_.op;
  h.length = std::min(left, room);
  h.last = h.length == left;
  h.stag = message_.stag;
  h.tagged_offset = message_.tagged_offset + produced_;
  h.msn = message_msn_;
  h.message_offset = produced_;

  s.offset = produced_;
  s.length = h.length;
  s.last = h.last;
  s.header_size = static_cast<std::uint8_t>(encode(h, s.header_bytes));
  s.trailer_size =
      static_cast<std::uint8_t>(padding_of(ddp_header_size(h.op) + h.length) + crc32c::size);
  s.trailer_bytes = {};
  produced_ += h.length;
  idle_ = h.last;
  return true;
}

void fpdu_writer::seal(outgoing_segment& s,
                       std::span<const std::span<const std::byte>> payload) const noexcept {
  s.trailer_bytes = {};
  if (!crc_)
    return;
  crc32c crc;
  crc.update(s.header());
  [[maybe_unused]] std::size_t bytes = 0;
  for (const auto& part : payload) {
    crc.update(part);
    bytes += part.size();
  }
  assert(bytes == s.length);
  const std::size_t padding = s.trailer_size - crc32c::size;
  crc.update(s.trailer().first(padding));
  crc.encode(s.trailer_bytes.data() + padding);
}

} // namespace soft::iwarp
