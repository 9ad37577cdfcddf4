// SPDX-License-Identifier: BSL-1.0
#include "connection/message_inbox.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <iterator>
#include <utility>

namespace asio_rdma::detail {
namespace {

using disposition = link_part::disposition;

std::optional<std::uint32_t> immediate_of(const frame_header& h) {
  if ((h.flags & frame_header::has_immediate) == 0)
    return std::nullopt;
  return h.immediate;
}

} // namespace

message_inbox::message_inbox(frame_link& link, const message_options& o)
    : link_(link),
      options_(o),
      messages_(link.options().receives),
      written_(link.options().receives),
      answers_(link.options().receives) {
  options_.pulls = std::max(options_.pulls, 1u);
  dropped_.reserve(link.options().receives);
}

link_part::disposition message_inbox::on_frame(const frame_header& header,
                                               std::span<const std::byte> payload,
                                               std::uint32_t slot) {
  switch (header.type) {
  case frame_type::message:
    if (dropping_)
      return disposition::consumed;
    reserve(1);
    messages_.push_back({.place = message_in::place::slot,
                         .slot = slot,
                         .immediate = immediate_of(header),
                         .memory = {.size = header.length}});
    return disposition::held;
  case frame_type::gathered:
    return on_gathered(payload, slot);
  case frame_type::written:
    if (dropping_)
      return disposition::consumed;
    written_.push_back({.slot = slot, .immediate = header.immediate});
    return disposition::held;
  case frame_type::offer:
    return on_offer(header, payload, slot);
  default:
    return disposition::violation;
  }
}

link_part::disposition message_inbox::on_gathered(std::span<const std::byte> payload,
                                                  std::uint32_t slot) {
  std::array<gathered_header, most_gathered> headers;
  std::uint32_t count = 0;
  for (auto rest = payload; !rest.empty();
       rest = rest.subspan(gathered_size(headers[count++].length)))
    if (count == most_gathered || decode(rest, headers[count]))
      return disposition::violation;
  if (count == 0)
    return disposition::violation;
  if (dropping_)
    return disposition::consumed;
  reserve(count);
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i != count; ++i) {
    messages_.push_back({.place = message_in::place::slot,
                         .slot = slot,
                         .at = static_cast<std::uint32_t>(at + gathered_header::size),
                         .last = i + 1 == count,
                         .immediate = headers[i].immediate,
                         .memory = {.size = headers[i].length}});
    at += gathered_size(headers[i].length);
  }
  return disposition::held;
}

// Makes room for further messages. A receive holds at most `most_gathered`, which bounds their
// number.
void message_inbox::reserve(std::uint32_t further) {
  if (messages_.reserve() >= further)
    return;
  const std::size_t most = std::size_t(link_.options().receives) * most_gathered;
  messages_.set_capacity(
      std::max(std::min(2 * messages_.capacity(), most), messages_.size() + further));
}

void message_inbox::release(const entry& e) {
  if (e.last)
    link_.release(e.slot);
}

link_part::disposition message_inbox::on_offer(const frame_header& header,
                                               std::span<const std::byte> payload,
                                               std::uint32_t slot) {
  offer_payload p;
  if (decode(payload, p) || unanswered_ == answers_.capacity())
    return disposition::violation;
  ++unanswered_;
  if (dropping_ || p.memory.size > options_.limit) {
    answers_.push_back({header.id, dropping_ ? refusal::closed : refusal::size});
    return disposition::consumed;
  }
  reserve(1);
  messages_.push_back({.where = entry::state::offered,
                       .place = message_in::place::pulled,
                       .slot = slot,
                       .id = header.id,
                       .immediate = immediate_of(header),
                       .memory = p.memory});
  ++unread_;
  return disposition::held;
}

bool message_inbox::next_answer(outgoing_frame& f) {
  if (answers_.empty())
    return false;
  const answer a = answers_.front();
  answers_.pop_front();
  --unanswered_;
  f.header.type = a.why ? frame_type::refused : frame_type::taken;
  f.header.id = a.id;
  f.header.immediate = a.why ? static_cast<std::uint32_t>(*a.why) : 0;
  return true;
}

void message_inbox::drop_refusals() {
  answers_.erase(std::remove_if(answers_.begin(), answers_.end(),
                                [](const answer& a) { return a.why == refusal::closed; }),
                 answers_.end());
}

bool message_inbox::receive(message_in& op) {
  assert(!op.busy_ && !op.waiting_);
  op.ec = {};
  op.bytes = 0;
  op.immediate.reset();
  op.where = message_in::place::none;
  op.waiting_ = true;
  op.pinned_ = op.busy_ = op.left_ = false;
  if (op.what == message_in::kind::written) {
    written_waiters_.push_back(op);
  } else {
    waiters_.push_back(op);
    ++waiting_;
  }
  const bool written = op.what == message_in::kind::written;
  if (dropping_)
    finish(op, no_receives_);
  return no_receives_ || !(written ? written_ : messages_).empty();
}

bool message_inbox::cancel(message_in& op) {
  if (!op.waiting_)
    return false;
  if (pinned_ != 0 && op.what == message_in::kind::message)
    // The receives behind it are now matched with other messages.
    unpin_from(static_cast<std::size_t>(
        std::distance(waiters_.begin(), frame_operation_list::s_iterator_to(op))));
  return leave(op, asio::error::operation_aborted);
}

void message_inbox::abandon(message_in& op) {
  for (entry& e : messages_)
    if (e.into == &op)
      e.into = nullptr;
  op.busy_ = op.left_ = false;
}

// Removes the receive from the queue. Returns false if it must wait until its memory is no longer
// in use.
bool message_inbox::leave(message_in& op, const error_code& ec) {
  stop_waiting(op);
  op.ec = ec;
  op.left_ = op.busy_;
  return !op.busy_;
}

void message_inbox::match() {
  match_messages();
  match_written();
}

bool message_inbox::next_drop(message_action& a) {
  if (dropped_.empty())
    return false;
  a.what = message_action::kind::drop;
  a.slot = dropped_.back();
  dropped_.pop_back();
  return true;
}

bool message_inbox::next_received(message_action& a) {
  if (done_receives_.empty())
    return false;
  a.what = message_action::kind::received;
  a.receive = &as_receive(done_receives_.front());
  done_receives_.pop_front();
  return true;
}

void message_inbox::match_messages() {
  while (waiting_ != 0) {
    if (messages_.empty()) {
      if (!no_receives_)
        return;
      finish(as_receive(waiters_.front()), no_receives_);
      continue;
    }
    entry& e = messages_.front();
    message_in& op = as_receive(waiters_.front());
    if (op.busy_)
      return;
    if (e.memory.size > op.capacity) {
      op.bytes = e.memory.size;
      unpin_from(0); // the receives now get other messages
      finish(op, asio::error::message_size);
      continue;
    }
    if (e.where != entry::state::whole)
      return;
    if (op.device_only && e.place != message_in::place::direct && e.memory.size != 0) {
      op.bytes = e.memory.size;
      unpin_from(0);
      finish(op, asio::error::operation_not_supported);
      continue;
    }
    deliver(op, e);
    messages_.pop_front();
  }
}

void message_inbox::match_written() {
  while (!written_waiters_.empty()) {
    message_in& op = as_receive(written_waiters_.front());
    if (!written_.empty()) {
      deliver(op, written_.front());
      written_.pop_front();
    } else if (no_receives_) {
      finish(op, no_receives_);
    } else {
      return;
    }
  }
}

void message_inbox::deliver(message_in& op, entry& e) {
  op.bytes = e.memory.size;
  op.immediate = e.immediate;
  op.where = e.place;
  op.slot = e.slot;
  op.at = e.at;
  op.last = e.last;
  uncount(e);
  if (e.place != message_in::place::slot)
    link_.release(e.slot);
  if (e.pinned())
    answers_.push_back({e.id, {}});
  finish(op, {});
}

void message_inbox::stop_waiting(message_in& op) {
  op.waiting_ = false;
  if (op.what == message_in::kind::written) {
    written_waiters_.erase(frame_operation_list::s_iterator_to(op));
  } else {
    waiters_.erase(frame_operation_list::s_iterator_to(op));
    --waiting_;
    if (std::exchange(op.pinned_, false))
      --pinned_;
  }
}

void message_inbox::finish(message_in& op, const error_code& ec) {
  stop_waiting(op);
  op.ec = ec;
  done_receives_.push_back(op);
}

// --- The end ---------------------------------------------------------------------------------

void message_inbox::close() {
  no_receives_ = asio::error::operation_aborted;
  dropping_ = true;
  unpin_from(0);
  // Messages that are being read stay until the READ has ended, and so do the receives whose memory
  // is in use.
  auto keep = messages_.begin();
  for (entry& e : messages_) {
    if (e.where == entry::state::pulling) {
      *keep++ = e;
      continue;
    }
    if (e.where == entry::state::offered) {
      --unread_;
      answers_.push_back({e.id, refusal::closed});
    }
    drop_pulled(e);
    release(e);
  }
  messages_.erase(keep, messages_.end());
  drop_written();
  end_receives(no_receives_);
}

void message_inbox::drop_written() {
  for (const entry& e : written_)
    link_.release(e.slot);
  written_.clear();
}

void message_inbox::end_receives(const error_code& ec) {
  while (waiting_ != 0)
    if (message_in& op = as_receive(waiters_.front()); leave(op, ec))
      done_receives_.push_back(op);
  while (!written_waiters_.empty())
    finish(as_receive(written_waiters_.front()), ec);
}

bool message_inbox::on_goodbye() {
  if (unread_ != 0 || pulling_ != 0 || pinned_ != 0 || (!answers_.empty() && !dropping_))
    return false;
  answers_.clear();
  if (!no_receives_)
    no_receives_ = asio::error::eof;
  return true;
}

void message_inbox::stop(const error_code& ec) {
  if (!no_receives_)
    no_receives_ = ec;
  const auto whole = [](const entry& e) {
    return e.where == entry::state::whole;
  };
  const auto lost = std::find_if_not(messages_.begin(), messages_.end(), whole);
  for (auto e = lost; e != messages_.end(); ++e) {
    if (e->pinned())
      finish(*e->into, ec);
    let_go(*e);
  }
  drop_from(lost);
  unread_ = pulling_ = 0;
  puts_off_ = false;
  answers_.clear();
}

} // namespace asio_rdma::detail
