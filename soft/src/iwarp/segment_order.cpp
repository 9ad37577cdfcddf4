// SPDX-License-Identifier: BSL-1.0
#include "iwarp/segment_order.hpp"

#include <algorithm>
#include <limits>

namespace soft::iwarp {

failure segment_order::accept(segment_header& h) noexcept {
  return h.tagged() ? accept_tagged(h) : accept_untagged(h);
}

bool segment_order::in_any_message() const noexcept {
  return write_.open || read_response_.open ||
         std::ranges::any_of(untagged_, [](const untagged_message& m) { return m.open; });
}

failure segment_order::accept_untagged(segment_header& h) noexcept {
  untagged_message& m = untagged_[static_cast<std::size_t>(h.queue())];
  const opcode_traits& t = traits(h.op);
  h.first = !m.open;
  if (h.msn != m.msn)
    return ddp_error(ddp_untagged_code::invalid_msn_range);
  if (m.open && h.op != m.op)
    return rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::unexpected_opcode);
  const std::uint32_t before = m.open ? m.received : 0;
  if (h.message_offset != before)
    return ddp_error(ddp_untagged_code::invalid_mo);
  const std::uint64_t total = std::uint64_t(before) + h.length;
  if (total > t.most)
    return ddp_error(ddp_untagged_code::message_too_long);
  if (h.last && total < t.least)
    return rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::catastrophic_stream);
  m.op = h.op;
  m.received = static_cast<std::uint32_t>(total);
  m.open = !h.last;
  if (h.last)
    ++m.msn; // 0 follows 2^32 - 1
  return {};
}

failure segment_order::accept_tagged(segment_header& h) noexcept {
  tagged_message& m = h.op == opcode::rdma_write ? write_ : read_response_;
  h.first = !m.open;
  const std::uint32_t before = m.open ? m.received : 0;
  h.message_offset = before;
  const bool follows = m.open && before != 0;
  if (h.length != 0) {
    const bool wrapped = follows && m.offset == 0; // the message has reached 2^64
    if (wrapped || h.length - 1 > std::numeric_limits<std::uint64_t>::max() - h.tagged_offset)
      return ddp_error(ddp_tagged_code::to_wrap);
    if (follows && h.stag != m.stag)
      return ddp_error(ddp_tagged_code::invalid_stag);
    if ((follows && h.tagged_offset != m.offset) || h.length > max_message_size - before)
      return ddp_error(ddp_tagged_code::base_or_bounds_violation);
    m.stag = h.stag;
    m.offset = h.tagged_offset + h.length;
  }
  m.received = before + h.length;
  m.open = !h.last;
  return {};
}

} // namespace soft::iwarp
