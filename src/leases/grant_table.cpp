// SPDX-License-Identifier: BSL-1.0
#include "leases/grant_table.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace asio_rdma::detail {
namespace {

constexpr std::size_t most_grants = std::numeric_limits<std::uint16_t>::max();

} // namespace

grant_table::grant_table(frame_link& link, region_inbox& inbox, const grant_limits& limits)
    : inbox_(inbox),
      limits_(limits),
      pending_(link.options().receives),
      answers_(link.options().receives) {
  link.add(*this, {frame_type::request, frame_type::renew, frame_type::release,
                   frame_type::returned, frame_type::yielded});
}

grant_action grant_table::next() {
  grant_action a;
  if (!may_act())
    return a;
  admit();
  if (!work_.empty()) {
    const std::uint32_t id = work_.front();
    work_.pop_front();
    grant& g = grants_[id & 0xffff];
    assert(g.where == state::making || g.where == state::ending);
    a.what = g.where == state::making ? grant_action::kind::make : grant_action::kind::end;
    a.grant = id;
    a.bytes = g.bytes;
    a.rights = g.rights;
    a.lend = g.lend;
    a.returned = g.returned;
    return a;
  }
  if (!done_lends_.empty()) {
    a.what = grant_action::kind::lent;
    a.lend = static_cast<lend_request*>(&done_lends_.front());
    a.grant = a.lend->grant;
    done_lends_.pop_front();
  } else if (!done_recalls_.empty()) {
    a.what = grant_action::kind::recalled;
    a.recall = static_cast<recall_request*>(&done_recalls_.front());
    done_recalls_.pop_front();
  } else if (pending_.empty()) { // a waiting request may be denied if a receive is cancelled
    idle();
  }
  return a;
}

// --- The life of a grant ---------------------------------------------------------------------

bool grant_table::is_full() const noexcept {
  return free_.empty() && grants_.size() == most_grants;
}

void grant_table::reserve_one() {
  if (!free_.empty() || is_full())
    return;
  if (grants_.size() == work_.capacity()) {
    const std::size_t places = std::max<std::size_t>(2 * grants_.size(), 8);
    free_.reserve(places);
    notices_.set_capacity(places);
    grants_.reserve(places);
    work_.set_capacity(places);
  }
  free_.push_back(static_cast<std::uint16_t>(grants_.size()));
  grants_.emplace_back();
}

// Call `reserve_one` first.
std::uint32_t grant_table::add(grant g) {
  assert(!free_.empty() && !work_.full());
  ask_again();
  const std::uint16_t index = free_.back();
  free_.pop_back();
  g.generation = grants_[index].generation;
  g.where = state::making;
  grants_[index] = g;
  work_.push_back(id_of(grants_[index]));
  return work_.back();
}

std::uint32_t grant_table::id_of(const grant& g) const noexcept {
  return static_cast<std::uint32_t>(&g - grants_.data()) | static_cast<std::uint32_t>(g.generation)
                                                               << 16;
}

grant_table::grant* grant_table::find(std::uint32_t id) noexcept {
  const std::size_t index = id & 0xffff;
  if (index >= grants_.size() || grants_[index].generation != id >> 16 ||
      grants_[index].where == state::free || grants_[index].where == state::kept)
    return nullptr;
  return &grants_[index];
}

void grant_table::made(std::uint32_t id, const remote_buffer& memory,
                       protocol_clock::time_point now) {
  assert(find(id) != nullptr && find(id)->where == state::making);
  ask_again();
  grant& g = *find(id);
  g.memory = memory;
  g.until = until(now, g.lease);
  g.where = state::live;
  if (g.lend != nullptr && (silent_ || g.revoked)) {
    finish(*std::exchange(g.lend, nullptr), silent_ ? closed_ : error::lease_revoked);
    begin_end(g);
  } else if (g.lend != nullptr) { // also while closing: the memory was lent before
    lends_.push_back(*g.lend);
  } else if (closed_ || g.revoked) {
    deny(g.request, closed_ ? refusal::closed : refusal::revoked);
    begin_end(g);
  } else {
    assert(!answers_.full());
    answers_.push_back({frame_type::granted, g.request, id, {}, g.lease});
  }
}

void grant_table::not_made(std::uint32_t id, const error_code& ec) {
  assert(find(id) != nullptr && find(id)->where == state::making);
  ask_again();
  grant& g = *find(id);
  if (g.lend != nullptr)
    finish(*std::exchange(g.lend, nullptr), closed_ ? closed_ : ec);
  else
    deny(g.request, closed_ ? refusal::closed : refusal::memory);
  remove(g);
}

void grant_table::begin_end(grant& g) {
  assert(g.where == state::live && !work_.full());
  g.where = state::ending;
  if (g.on_request && !g.returned) {
    ending_bytes_ += g.bytes;
    ++ending_;
  }
  work_.push_back(id_of(g));
}

void grant_table::ended(std::uint32_t id, const error_code& ec) {
  assert(find(id) != nullptr && find(id)->where == state::ending);
  ask_again();
  grant& g = *find(id);
  if (g.on_request && !g.returned) {
    assert(ending_ != 0 && ending_bytes_ >= g.bytes);
    ending_bytes_ -= g.bytes;
    --ending_;
  }
  if (g.returned)
    inbox_.ready(id);
  if (!g.returned || ec || inbox_.dropping())
    return remove(g, ec);
  settle_recalls(id, g.confirmed, ec);
  g.where = state::kept;
}

void grant_table::received(std::uint32_t id) {
  grant& g = grants_[id & 0xffff];
  assert(g.generation == id >> 16 && g.where == state::kept);
  ask_again();
  remove(g);
}

void grant_table::remove(grant& g, const error_code& ec) {
  settle_recalls(id_of(g), g.confirmed, ec);
  if (g.on_request) {
    assert(granted_ != 0 && bytes_ >= g.bytes);
    bytes_ -= g.bytes;
    --granted_;
    g.on_request = false;
  }
  g.where = state::free;
  free_if_done(g);
}

void grant_table::free_if_done(grant& g) {
  if (g.where != state::free || g.notice)
    return; // the notice needs the number
  ++g.generation;
  free_.push_back(static_cast<std::uint16_t>(&g - grants_.data()));
}

bool grant_table::revoke(std::uint32_t id) {
  ask_again();
  grant* const g = find(id);
  if (g != nullptr && g->where == state::making)
    return !std::exchange(g->revoked, true);
  if (g == nullptr || g->where != state::live)
    return false;
  if (!g->recalled) // otherwise the peer knows, or the notice is about to be sent
    notify(*g);
  begin_end(*g);
  return true;
}

void grant_table::notify(grant& g) {
  if (closed_)
    return;
  assert(!g.notice && !notices_.full());
  g.notice = true;
  notices_.push_back(id_of(g));
}

void grant_table::expire(protocol_clock::time_point now) {
  ask_again();
  for (grant& g : grants_)
    if (g.where == state::live && g.until <= now)
      begin_end(g);
}

protocol_clock::time_point grant_table::next_expiry() const noexcept {
  auto result = protocol_clock::time_point::max();
  for (const grant& g : grants_)
    if (g.where == state::live)
      result = std::min(result, g.until);
  return result;
}

std::size_t grant_table::live() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      grants_.begin(), grants_.end(), [](const grant& g) { return g.where != state::free; }));
}

// --- Lending ---------------------------------------------------------------------------------

void grant_table::lend(lend_request& op) {
  ask_again();
  op.ec = {};
  if (closed_)
    return finish(op, closed_);
  if (is_full())
    return finish(op, error::remote_memory_limit);
  reserve_one();
  grant g;
  g.bytes = op.bytes;
  g.rights = op.rights;
  g.lease = fitting(op.lease);
  g.lend = &op;
  op.grant = add(g);
}

bool grant_table::next_data(outgoing_frame& f) {
  while (!lends_.empty()) {
    auto& op = static_cast<lend_request&>(lends_.front());
    lends_.pop_front();
    grant* const g = find(op.grant);
    if (g == nullptr || g->where != state::live) { // revoked in the meantime
      finish(op, error::lease_revoked);
      continue;
    }
    g->lend = nullptr;
    g->told = true;
    f.header.type = frame_type::lent;
    f.header.length = loan_payload::size;
    f.header.id = op.grant;
    f.operation = &op;
    encode(loan_payload{g->memory, g->lease, op.tag, g->rights}, f.payload);
    return true;
  }
  return false;
}

void grant_table::on_sent(const frame_header&, frame_operation* op) {
  if (op != nullptr)
    finish(static_cast<lend_request&>(*op), {});
}

void grant_table::on_dropped(const frame_header&, frame_operation* op, const error_code& ec) {
  if (op != nullptr)
    finish(static_cast<lend_request&>(*op), ec);
}

void grant_table::finish(lend_request& op, const error_code& ec) {
  ask_again();
  op.ec = ec;
  done_lends_.push_back(op);
}

// --- The end ---------------------------------------------------------------------------------

void grant_table::end_all(bool confirmed) {
  while (!pending_.empty()) {
    deny(pending_.front().request, refusal::closed);
    pending_.pop_front();
  }
  for (grant& g : grants_)
    if (g.where == state::live) {
      g.lend = nullptr;
      g.confirmed = confirmed;
      begin_end(g);
    }
  while (!lends_.empty()) {
    auto& op = static_cast<lend_request&>(lends_.front());
    lends_.pop_front();
    finish(op, closed_);
  }
}

void grant_table::on_closing() {
  // The peer uses its grants until it sends its goodbye.
  if (!closed_)
    closed_ = asio::error::operation_aborted;
  while (!pending_.empty()) {
    deny(pending_.front().request, refusal::closed);
    pending_.pop_front();
  }
  for (grant& g : grants_) // the inbox drops the memory
    if (g.where == state::kept)
      remove(g);
}

bool grant_table::drained() const {
  const bool making = !silent_ && std::any_of(grants_.begin(), grants_.end(), [](const grant& g) {
    return g.where == state::making;
  });
  return !making && answers_.empty() && notices_.empty() && lends_.empty();
}

bool grant_table::on_goodbye() {
  if (!closed_)
    closed_ = asio::error::broken_pipe;
  silent_ = true;
  end_all(true); // the peer's operations have ended before its goodbye
  answers_.clear();
  unanswered_ = 0;
  while (!notices_.empty()) {
    grant& g = grants_[notices_.front() & 0xffff];
    notices_.pop_front();
    g.notice = false;
    free_if_done(g);
  }
  return true;
}

void grant_table::on_stopped(const error_code& ec) {
  closed_ = ec; // more precise than the error of a close
  end_all(false);
  for (frame_operation& op : recalls_)
    static_cast<recall_request&>(op).ec = ec;
  on_goodbye();
}

} // namespace asio_rdma::detail
