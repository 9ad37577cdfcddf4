// SPDX-License-Identifier: BSL-1.0
#include "iwarp/mpa_negotiation.hpp"

#include <algorithm>

namespace soft::iwarp {
namespace {

constexpr std::uint16_t not_negotiated = start_frame::not_negotiated;
constexpr std::uint16_t largest = not_negotiated - 1;

/// The preferred kind of a set: siw prefers a write, too.
rtr_kinds one_of(rtr_kinds set) noexcept {
  for (const auto kind :
       {rtr_kinds::rdma_write, rtr_kinds::rdma_read, rtr_kinds::zero_length_fulpdu})
    if (has(set, kind))
      return kind;
  return rtr_kinds::none;
}

std::uint16_t limited(std::uint16_t own, std::uint16_t peer) noexcept {
  return peer == not_negotiated ? std::min(own, largest) : std::min({own, peer, largest});
}

} // namespace

start_frame make_request(const start_options& own) noexcept {
  start_frame f;
  f.crc = own.crc;
  f.revision = own.enhanced ? 2 : 1;
  f.enhanced = own.enhanced;
  if (!own.enhanced)
    return f;
  f.ird = std::min(own.ird, largest);
  f.ord = std::min(own.ord, largest);
  f.peer_to_peer = own.peer_to_peer;
  if (own.peer_to_peer) {
    f.rtr = own.rtr;
    if (own.ord == 0 && has(own.rtr, rtr_kinds::rdma_write))
      f.rtr = rtr_kinds::rdma_write;
    if (has(f.rtr, rtr_kinds::rdma_read))
      f.ord = std::max<std::uint16_t>(f.ord, 1);
  }
  return f;
}

start_frame make_rejection(const start_frame& request) noexcept {
  start_frame f;
  f.reply = true;
  f.rejected = true;
  f.crc = request.crc;
  f.revision = request.revision;
  f.enhanced = request.enhanced;
  f.peer_to_peer = request.peer_to_peer;
  return f;
}

start_answer answer(const start_frame& request, const start_options& own) noexcept {
  start_answer a;
  if (request.markers) {
    a.result.error = start_error::markers;
    a.reply = make_rejection(request);
    return a;
  }
  a.result.crc = request.crc || own.crc;
  a.result.ird = own.ird;
  a.result.ord = own.ord;
  a.reply.reply = true;
  a.reply.crc = a.result.crc;
  a.reply.revision = request.revision;
  a.reply.enhanced = request.enhanced;
  if (!request.enhanced)
    return a;
  a.result.ird = limited(own.ird, request.ord);
  a.result.ord = limited(own.ord, request.ird);
  if (request.peer_to_peer) {
    a.result.peer_to_peer = a.reply.peer_to_peer = true;
    const rtr_kinds common = one_of(request.rtr & own.rtr);
    a.result.rtr = a.reply.rtr = common != rtr_kinds::none ? common : rtr_kinds::rdma_write;
    if (common == rtr_kinds::rdma_read)
      a.result.ird = std::max<std::uint16_t>(a.result.ird, 1);
  }
  a.reply.ird = request.ord == not_negotiated ? not_negotiated : a.result.ird;
  a.reply.ord = request.ird == not_negotiated ? not_negotiated : a.result.ord;
  return a;
}

start_result conclude(const start_frame& request, const start_frame& reply,
                      const start_options& own) noexcept {
  start_result r;
  const auto fail = [&r](start_error e) {
    r.error = e;
    return r;
  };
  if (reply.rejected)
    return fail(start_error::rejected);
  if (reply.markers)
    return fail(start_error::markers);
  if (reply.revision != request.revision || reply.enhanced != request.enhanced)
    return fail(start_error::reply_mismatch);
  r.crc = request.crc || reply.crc;
  r.ird = own.ird;
  r.ord = own.ord;
  if (!request.enhanced)
    return r;
  r.ord = limited(request.ord, reply.ird);
  r.ird = request.ird;
  if (reply.ord != not_negotiated) {
    if (reply.ord > std::max(own.ird, own.max_ird))
      return fail(start_error::insufficient_ird);
    r.ird = reply.ord;
  }
  if (request.peer_to_peer) {
    r.peer_to_peer = true;
    r.rtr = one_of(request.rtr & reply.rtr);
    if (r.rtr == rtr_kinds::none || !reply.peer_to_peer)
      return fail(start_error::no_matching_rtr);
    if (r.rtr == rtr_kinds::rdma_read)
      r.ord = std::max<std::uint16_t>(r.ord, 1);
  }
  return r;
}

failure to_protocol_error(start_error e) noexcept {
  switch (e) {
  case start_error::insufficient_ird:
    return mpa_error(mpa_error_code::insufficient_ird);
  case start_error::no_matching_rtr:
    return mpa_error(mpa_error_code::no_matching_rtr);
  default:
    return {};
  }
}

} // namespace soft::iwarp
