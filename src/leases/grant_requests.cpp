// SPDX-License-Identifier: BSL-1.0
// Frames of the peer that concern grants, and the answers to its requests.
#include "leases/grant_table.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

link_part::disposition grant_table::on_frame(const frame_header& header,
                                             std::span<const std::byte> payload, std::uint32_t slot,
                                             protocol_clock::time_point now) {
  if (header.type == frame_type::request)
    return on_request(header, payload);
  if (header.type == frame_type::renew)
    return on_renew(header, payload, now);
  tag_payload p;
  if ((header.id & 0xffff) >= grants_.size() ||
      (header.type == frame_type::returned && decode(payload, p)))
    return disposition::violation;
  grant* const g = find(header.id);
  if (header.type == frame_type::yielded && g != nullptr && !g->asked)
    return disposition::violation; // the peer was not asked
  if (g == nullptr || g->where != state::live)
    return disposition::consumed; // the grant has ended without the peer's knowledge
  g->confirmed = true;
  if (header.type == frame_type::returned && !inbox_.ended()) {
    g->returned = true;
    inbox_.push(slot, true, header.id, p.tag, false);
    ask_again();
    begin_end(*g);
    return disposition::held;
  }
  begin_end(*g);
  return disposition::consumed;
}

link_part::disposition grant_table::on_request(const frame_header& header,
                                               std::span<const std::byte> payload) {
  request_payload p;
  if (decode(payload, p) || unanswered_ == answers_.capacity())
    return disposition::violation;
  ++unanswered_;
  if (closed_)
    deny(header.id, refusal::closed);
  else if (!within(p.rights, limits_.rights))
    deny(header.id, refusal::rights);
  else if (p.bytes > limits_.bytes)
    deny(header.id, refusal::size);
  else {
    assert(!pending_.full()); // an unanswered request each
    pending_.push_back({header.id, p});
  }
  return disposition::consumed;
}

void grant_table::admit() {
  while (!pending_.empty()) {
    const pending p = pending_.front();
    const std::uint64_t room = limits_.bytes - bytes_;
    const bool fits = p.what.bytes <= room && granted_ < limits_.grants;
    if (is_full() || (!fits && !will_fit(p.what))) {
      deny(p.request, refusal::quota);
    } else if (!fits) {
      return; // retried when a key has ended or a region has been received
    } else {
      reserve_one();
      bytes_ += p.what.bytes;
      ++granted_;
      grant g;
      g.request = p.request;
      g.bytes = p.what.bytes;
      g.rights = p.what.rights;
      g.lease = lease_for(p.what.lease);
      g.on_request = true;
      add(g);
    }
    pending_.pop_front();
  }
}

// Whether the request fits when keys have ended and waiting operations have received their regions.
// The program may never receive the other regions that the peer has handed back.
bool grant_table::will_fit(const request_payload& p) const {
  std::uint64_t room = limits_.bytes - bytes_ + ending_bytes_;
  std::uint32_t granted = granted_ - ending_;
  inbox_.for_each_awaited([&](std::uint32_t id) {
    const grant& g = grants_[id & 0xffff];
    if (g.generation == id >> 16 && g.on_request) { // otherwise lent, or its key could not be ended
      room += g.bytes;
      --granted;
    }
  });
  return p.bytes <= room && granted < limits_.grants;
}

link_part::disposition grant_table::on_renew(const frame_header& header,
                                             std::span<const std::byte> payload,
                                             protocol_clock::time_point now) {
  lease_payload p;
  if (decode(payload, p) || unanswered_ == answers_.capacity() ||
      (p.grant & 0xffff) >= grants_.size())
    return disposition::violation;
  ++unanswered_;
  grant* const g = find(p.grant);
  if (g == nullptr || g->where != state::live || g->recalled) {
    deny(header.id, g != nullptr && g->recalled ? refusal::revoked : refusal::expired);
    return disposition::consumed;
  }
  // A grant that was lent may have a longer lease than grants on request.
  const auto lease = g->on_request ? lease_for(p.lease) : g->lease;
  g->until = std::max(g->until, until(now, lease));
  answers_.push_back({frame_type::renewed, header.id, p.grant, {}, lease});
  return disposition::consumed;
}

void grant_table::deny(std::uint32_t request, refusal why) {
  if (silent_)
    return;
  assert(!answers_.full()); // it has room for all unanswered requests
  ask_again();
  answers_.push_back({frame_type::denied, request, 0, why, {}});
}

std::chrono::microseconds grant_table::lease_for(std::chrono::microseconds asked) const noexcept {
  const auto lease = asked == asked.zero() ? limits_.default_lease : asked;
  return fitting(std::min(lease, limits_.longest_lease));
}

protocol_clock::time_point grant_table::until(protocol_clock::time_point now,
                                              std::chrono::microseconds lease) const noexcept {
  if (lease == no_lease)
    return protocol_clock::time_point::max();
  return now + std::min(lease, longest_lease) + std::min(limits_.grace, longest_lease);
}

bool grant_table::next_control(outgoing_frame& f) {
  admit();
  if (!answers_.empty()) {
    answer a = answers_.front();
    answers_.pop_front();
    --unanswered_;
    grant* const g = a.type == frame_type::granted ? find(a.grant) : nullptr;
    if (a.type == frame_type::granted && (g == nullptr || g->where != state::live)) {
      a.type = frame_type::denied; // the grant ended before the peer got it
      a.why = refusal::revoked;
    }
    f.header.type = a.type;
    f.header.id = a.request;
    if (a.type == frame_type::denied) {
      f.header.immediate = static_cast<std::uint32_t>(a.why);
    } else if (a.type == frame_type::renewed) {
      f.header.length = lease_payload::size;
      encode(lease_payload{a.lease, a.grant}, f.payload);
    } else if (g != nullptr) {
      g->told = true;
      f.header.length = grant_payload::size;
      encode(grant_payload{g->memory, a.lease, a.grant, g->rights}, f.payload);
    }
    return true;
  }
  if (!notices_.empty()) {
    f.header.id = notices_.front();
    notices_.pop_front();
    grant& g = grants_[f.header.id & 0xffff];
    g.notice = false;
    if (g.where == state::live) {
      f.header.type = frame_type::recall;
      g.asked = true;
    } else {
      f.header.type = frame_type::ended;
      f.header.immediate = static_cast<std::uint32_t>(refusal::revoked);
    }
    free_if_done(g);
    return true;
  }
  return false;
}

} // namespace asio_rdma::detail
