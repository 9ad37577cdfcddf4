// SPDX-License-Identifier: BSL-1.0
#include "leases/lease_table.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace asio_rdma::detail {
namespace {

lease_request& as_request(frame_operation& op) { return static_cast<lease_request&>(op); }

protocol_clock::time_point after(protocol_clock::time_point asked,
                                 std::chrono::microseconds lease) {
  return lease == no_lease ? protocol_clock::time_point::max() : asked + lease;
}

} // namespace

lease_table::lease_table(frame_link& link, region_inbox& inbox)
    : inbox_(inbox),
      most_asked_(std::min(link.options().peer_receives,
                           std::uint32_t(std::numeric_limits<std::uint16_t>::max()))),
      most_releases_(link.options().receives) {
  link.add(*this, {frame_type::granted, frame_type::denied, frame_type::renewed, frame_type::ended,
                   frame_type::lent, frame_type::recall});
}

lease_request* lease_table::next() {
  if (done_.empty()) {
    idle();
    return nullptr;
  }
  lease_request& op = as_request(done_.front());
  done_.pop_front();
  return &op;
}

void lease_table::finish(lease_request& op, const error_code& ec) {
  op.ec = ec;
  op.state_ = lease_request::state::done;
  done_.push_back(op);
}

// --- Asking ----------------------------------------------------------------------------------

void lease_table::start(lease_request& op, protocol_clock::time_point now) {
  assert(op.state_ == lease_request::state::idle || op.state_ == lease_request::state::done);
  ask_again();
  op.ec = {};
  op.asked_ = now;
  if (closed_)
    return finish(op, closed_);
  if (op.what == lease_request::kind::memory) {
    if (op.bytes == 0 || op.rights == remote_rights::none || !within(op.rights, remote_rights::all))
      return finish(op, asio::error::invalid_argument);
  } else {
    const auto i = leases_.find(op.id);
    error_code ec = i == leases_.end() ? error_code(error::lease_expired) : i->second.ended;
    if (op.what == lease_request::kind::give && !ec)
      ec = check(op.id, now);
    if (ec)
      return finish(op, ec);
    op.grant_ = i->second.grant;
  }
  op.lease = fitting(op.lease);
  op.state_ = lease_request::state::queued;
  if (op.what == lease_request::kind::give) {
    live_.erase(op.grant_);
    leases_.erase(op.id); // unusable from here on
    gifts_.push_back(op);
  } else {
    queued_.push_back(op);
  }
}

bool lease_table::may_cancel(const lease_request& op) const noexcept {
  return op.what != lease_request::kind::give &&
         (op.state_ == lease_request::state::queued || op.state_ == lease_request::state::asked);
}

bool lease_table::cancel(lease_request& op) {
  ask_again();
  if (!may_cancel(op))
    return false;
  if (op.state_ == lease_request::state::queued) {
    queued_.erase(frame_operation_list::s_iterator_to(op));
  } else {
    for (request_slot& s : asked_)
      if (s.op == &op)
        s.op = nullptr;
  }
  op.state_ = lease_request::state::idle;
  return true;
}

bool lease_table::next_control(outgoing_frame& f) {
  if (!releases_.empty()) {
    f.header.type = releases_.front().type;
    f.fenced = true; // the frame ends the key, which outstanding READs still need
    f.header.id = releases_.front().grant;
    releases_.pop_front();
    pace_regions();
    return true;
  }
  if (queued_.empty())
    return false;
  if (free_.empty()) {
    if (asked_.size() == most_asked_)
      return false;
    asked_.emplace_back();
    free_.reserve(asked_.capacity()); // so that returning an index cannot fail
    free_.push_back(static_cast<std::uint16_t>(asked_.size() - 1));
  }
  lease_request& op = as_request(queued_.front());
  queued_.pop_front();
  op.state_ = lease_request::state::asked;
  const std::uint16_t index = free_.back();
  free_.pop_back();
  assert(index < asked_.size() && !asked_[index].used);
  request_slot& s = asked_[index];
  s.op = &op;
  s.used = true;
  s.renew = op.what == lease_request::kind::renew;
  f.header.id = index | static_cast<std::uint32_t>(s.generation) << 16;
  if (s.renew) {
    s.grant = op.grant_;
    f.header.type = frame_type::renew;
    f.header.length = lease_payload::size;
    encode(lease_payload{op.lease, s.grant}, f.payload);
  } else {
    f.header.type = frame_type::request;
    f.header.length = request_payload::size;
    encode(request_payload{op.bytes, op.lease, op.rights}, f.payload);
  }
  return true;
}

bool lease_table::next_data(outgoing_frame& f) {
  if (gifts_.empty())
    return false;
  lease_request& op = as_request(gifts_.front());
  gifts_.pop_front();
  f.header.type = frame_type::returned;
  f.header.length = tag_payload::size;
  f.fenced = true;
  f.header.id = op.grant_;
  f.operation = &op;
  encode(tag_payload{op.tag}, f.payload);
  return true;
}

void lease_table::on_sent(const frame_header&, frame_operation* op) {
  if (op != nullptr)
    finish(as_request(*op), {});
}

void lease_table::on_dropped(const frame_header&, frame_operation* op, const error_code& ec) {
  if (op != nullptr)
    finish(as_request(*op), ec);
}

// --- Frames from the owner -------------------------------------------------------------------

link_part::disposition lease_table::on_frame(const frame_header& header,
                                             std::span<const std::byte> payload, std::uint32_t slot,
                                             protocol_clock::time_point now) {
  if (header.type == frame_type::lent)
    return on_lent(header, payload, slot, now);
  if (header.type == frame_type::recall)
    end_lease(header.id, error::lease_revoked, true);
  else if (header.type == frame_type::ended)
    end_lease(header.id, to_error(static_cast<refusal>(header.immediate)), false);
  else
    return on_answer(header, payload, now);
  return disposition::consumed;
}

// An unknown lease was released in the meantime, and the owner learns that by the release.
void lease_table::end_lease(std::uint32_t grant, const error_code& why, bool yields) {
  const auto i = live_.find(grant);
  if (i == live_.end())
    return;
  leases_.at(i->second).ended = why;
  live_.erase(i);
  if (yields && !closed_) // otherwise the goodbye ends all grants
    tell({frame_type::yielded, grant});
}

link_part::disposition lease_table::on_answer(const frame_header& header,
                                              std::span<const std::byte> payload,
                                              protocol_clock::time_point now) {
  const std::size_t index = header.id & 0xffff;
  if (index >= asked_.size() || !asked_[index].used ||
      asked_[index].generation != header.id >> 16 ||
      (header.type != frame_type::denied &&
       asked_[index].renew != (header.type == frame_type::renewed)))
    return disposition::violation;
  request_slot& s = asked_[index];
  lease_payload renewal;
  grant_payload grant;
  if (header.type == frame_type::renewed && (decode(payload, renewal) || renewal.grant != s.grant))
    return disposition::violation;
  if (header.type == frame_type::granted &&
      (decode(payload, grant) || is_live(grant.grant, now) ||
       (s.op != nullptr && (grant.memory.size != s.op->bytes || grant.rights != s.op->rights))))
    return disposition::violation;
  // First, because `add` and `reserve_release` may throw.
  const lease* made = nullptr;
  if (header.type == frame_type::granted && s.op != nullptr)
    made = &add(grant, after(s.op->asked_, grant.lease));
  else if (header.type == frame_type::granted)
    reserve_release();
  lease_request* const op = std::exchange(s.op, nullptr);
  s.used = false;
  ++s.generation;
  free_.push_back(static_cast<std::uint16_t>(index));
  if (op == nullptr) {
    if (header.type == frame_type::granted && !closed_)
      tell({frame_type::release, grant.grant});
  } else if (header.type == frame_type::denied) {
    const auto why = static_cast<refusal>(header.immediate);
    finish(*op, why == refusal::size ? error_code(error::remote_memory_limit) : to_error(why));
  } else if (header.type == frame_type::renewed) {
    on_renewed(*op, renewal);
  } else if (made != nullptr) {
    op->result = made->what;
    op->id = op->result.id;
    finish(*op, {});
  }
  return disposition::consumed;
}

void lease_table::on_renewed(lease_request& op, const lease_payload& p) {
  const auto i = leases_.find(op.id);
  if (i == leases_.end() || i->second.ended)
    return finish(op, i == leases_.end() ? error_code(error::lease_expired) : i->second.ended);
  lease& l = i->second;
  const auto until = after(op.asked_, p.lease);
  l.what.until = l.begun ? std::max(l.what.until, until) : until;
  l.begun = true;
  op.result = l.what;
  finish(op, {});
}

// When a lease expires, the owner may reuse the grant's number without notice.
bool lease_table::is_live(std::uint32_t grant, protocol_clock::time_point now) {
  const auto i = live_.find(grant);
  if (i == live_.end())
    return false;
  lease& l = leases_.at(i->second);
  if (now < l.what.until)
    return true;
  l.ended = error::lease_expired;
  live_.erase(i);
  return false;
}

void lease_table::reserve_release() {
  const std::size_t needed = leases_.size() + releases_.size() + 1;
  if (releases_.capacity() < needed)
    releases_.set_capacity(std::max<std::size_t>(2 * needed, 8));
}

void lease_table::tell(const release_frame& f) noexcept {
  assert(!releases_.full());
  releases_.push_back(f);
  pace_regions();
}

// A peer may lend regions faster than it takes the releases of earlier ones.
void lease_table::pace_regions() noexcept { inbox_.pause(releases_.size() > most_releases_); }

lease_table::lease& lease_table::add(const grant_payload& p, protocol_clock::time_point until) {
  assert(!live_.contains(p.grant));
  reserve_release();
  do
    ++last_id_;
  while (leases_.contains(last_id_));
  live_.emplace(p.grant, last_id_);
  return leases_.emplace(last_id_, lease{{last_id_, p.memory, p.rights, until}, p.grant, {}, true})
      .first->second;
}

link_part::disposition lease_table::on_lent(const frame_header& header,
                                            std::span<const std::byte> payload, std::uint32_t slot,
                                            protocol_clock::time_point now) {
  loan_payload p;
  if (decode(payload, p) || is_live(header.id, now))
    return disposition::violation;
  if (closed_ || inbox_.ended())
    return disposition::consumed; // the goodbye will end the lease
  const bool for_good = p.lease == no_lease;
  lease& l = add({p.memory, p.lease, header.id, p.rights},
                 for_good ? protocol_clock::time_point::max() : protocol_clock::time_point::min());
  l.begun = for_good;
  inbox_.push(slot, false, l.what.id, p.tag, true);
  return disposition::held;
}

// --- Leases ----------------------------------------------------------------------------------

error_code lease_table::check(std::uint32_t id, protocol_clock::time_point now) const {
  const auto i = leases_.find(id);
  if (i == leases_.end())
    return error::lease_expired;
  if (i->second.ended)
    return i->second.ended;
  return now < i->second.what.until ? error_code() : error::lease_expired;
}

std::optional<remote_lease> lease_table::get(std::uint32_t id) const {
  const auto i = leases_.find(id);
  if (i == leases_.end())
    return std::nullopt;
  return i->second.what;
}

void lease_table::release(std::uint32_t id) {
  ask_again();
  const auto i = leases_.find(id);
  if (i == leases_.end())
    return;
  const lease& l = i->second;
  if (!l.ended) {
    live_.erase(l.grant);
    if (!closed_)
      tell({frame_type::release, l.grant});
  }
  leases_.erase(i);
}

// --- The end ---------------------------------------------------------------------------------

void lease_table::finish_all(frame_operation_list& from, const error_code& ec) {
  while (!from.empty()) {
    lease_request& op = as_request(from.front());
    from.pop_front();
    finish(op, ec);
  }
}

void lease_table::end_asked(const error_code& ec) {
  for (request_slot& s : asked_)
    if (lease_request* const op = std::exchange(s.op, nullptr))
      finish(*op, ec);
}

void lease_table::on_closing() {
  // The goodbye ends all grants, so nothing needs to be released any more.
  closed_ = asio::error::operation_aborted;
  finish_all(queued_, closed_);
  end_asked(closed_);
  releases_.clear();
  pace_regions();
}

bool lease_table::drained() const { return gifts_.empty(); }

bool lease_table::on_goodbye() {
  on_stopped(asio::error::broken_pipe);
  return true;
}

void lease_table::on_stopped(const error_code& ec) {
  closed_ = ec; // more precise than the error of a close
  finish_all(queued_, closed_);
  finish_all(gifts_, closed_);
  end_asked(closed_);
  releases_.clear();
  pace_regions();
  live_.clear();
  for (auto& [id, l] : leases_)
    if (!l.ended)
      l.ended = closed_;
}

} // namespace asio_rdma::detail
