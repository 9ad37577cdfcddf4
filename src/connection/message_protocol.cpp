// SPDX-License-Identifier: BSL-1.0
#include "connection/message_protocol.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace asio_rdma::detail {
namespace {

message_out& as_send(frame_operation& op) { return static_cast<message_out&>(op); }
message_in& as_receive(frame_operation& op) { return static_cast<message_in&>(op); }

template <class List>
frame_operation& pop(List& list) {
  frame_operation& op = list.front();
  list.pop_front();
  return op;
}

std::optional<std::uint32_t> immediate_of(const frame_header& h) {
  if ((h.flags & frame_header::has_immediate) == 0)
    return std::nullopt;
  return h.immediate;
}

} // namespace

message_protocol::message_protocol(frame_link& link, const message_options& o)
    : link_(link),
      options_(o),
      eager_(link.options().peer_receive_size - frame_header::size),
      next_prepare_(queue_.end()),
      messages_(link.options().receives),
      written_(link.options().receives),
      answers_(link.options().receives) {
  options_.pulls = std::max(options_.pulls, 1u);
  // The peer keeps an answer for each offer.
  const std::uint32_t most = std::min(link.options().peer_receives,
                                      std::uint32_t(std::numeric_limits<std::uint16_t>::max()));
  offers_.resize(std::clamp<std::uint32_t>(o.offers, 1, most));
  free_offers_.reserve(offers_.size());
  for (std::size_t i = offers_.size(); i != 0; --i)
    free_offers_.push_back(static_cast<std::uint16_t>(i - 1));
  dropped_.reserve(link.options().receives);
  link.add(*this, {frame_type::message, frame_type::offer, frame_type::written, frame_type::taken,
                   frame_type::refused});
}

message_action message_protocol::next() {
  message_action a;
  if (!may_act())
    return a;
  match();
  match_written();
  if (!dropped_.empty()) {
    a.what = message_action::kind::drop;
    a.slot = dropped_.back();
    dropped_.pop_back();
  } else if (!done_receives_.empty()) {
    a.what = message_action::kind::received;
    a.receive = &as_receive(pop(done_receives_));
  } else if (!done_sends_.empty()) {
    a.what = message_action::kind::sent;
    a.send = &as_send(pop(done_sends_));
  } else if (!next_pull(a) && !next_prepare(a)) {
    idle();
    return a;
  }
  ask_again(); // there may be an answer to send
  return a;
}

// --- Sending ---------------------------------------------------------------------------------

void message_protocol::send(message_out& op) {
  assert(op.state_ == message_out::state::idle || op.state_ == message_out::state::done);
  ask_again();
  op.ec = {};
  op.under_way_ = op.answered_ = false;
  if (no_sends_)
    return finish(op, no_sends_);
  op.state_ = message_out::state::waiting;
  queue_.push_back(op);
  if (next_prepare_ == queue_.end())
    next_prepare_ = std::prev(queue_.end());
}

bool message_protocol::next_prepare(message_action& a) {
  for (; next_prepare_ != queue_.end() && !free_offers_.empty(); ++next_prepare_) {
    message_out& op = as_send(*next_prepare_);
    if (is_eager(op))
      continue;
    const std::uint16_t index = free_offers_.back();
    free_offers_.pop_back();
    offers_[index].send = &op;
    op.id_ = index | static_cast<std::uint32_t>(offers_[index].generation) << 16;
    op.state_ = message_out::state::preparing;
    ++next_prepare_;
    a.what = message_action::kind::prepare;
    a.send = &op;
    return true;
  }
  return false;
}

void message_protocol::prepared(message_out& op, const remote_buffer& memory) {
  ask_again();
  if (op.state_ != message_out::state::preparing)
    return; // the operation has ended in the meantime
  op.memory_ = memory;
  op.state_ = message_out::state::ready;
}

void message_protocol::fail_send(message_out& op, const error_code& ec) {
  ask_again();
  if (op.state_ != message_out::state::preparing)
    return;
  leave_queue(op);
  finish(op, ec);
}

bool message_protocol::cancel(message_out& op) {
  ask_again();
  if (op.state_ != message_out::state::waiting && op.state_ != message_out::state::preparing &&
      op.state_ != message_out::state::ready)
    return false;
  leave_queue(op);
  op.state_ = message_out::state::idle;
  return true;
}

void message_protocol::leave_queue(message_out& op) {
  const auto i = request_list::s_iterator_to(op);
  if (i == next_prepare_)
    ++next_prepare_;
  queue_.erase(i);
  if (op.state_ != message_out::state::waiting && op.state_ != message_out::state::idle)
    free_offer(op);
}

void message_protocol::free_offer(message_out& op) {
  assert((op.id_ & 0xffff) < offers_.size() && offers_[op.id_ & 0xffff].send == &op);
  const auto index = static_cast<std::uint16_t>(op.id_);
  offers_[index].send = nullptr;
  ++offers_[index].generation;
  free_offers_.push_back(index);
}

bool message_protocol::is_eager(const message_out& op) const noexcept {
  return op.what == message_out::kind::written || op.bytes <= eager_;
}

bool message_protocol::has_data() const {
  if (queue_.empty())
    return false;
  const auto& op = static_cast<const message_out&>(queue_.front());
  return is_eager(op) || op.state_ == message_out::state::ready;
}

bool message_protocol::next_data(outgoing_frame& f) {
  if (!has_data())
    return false;
  message_out& op = as_send(queue_.front());
  const bool eager = is_eager(op);
  if (next_prepare_ == queue_.begin())
    ++next_prepare_;
  queue_.pop_front();
  op.under_way_ = true;
  f.operation = &op;
  f.header.immediate = op.immediate.value_or(0);
  f.header.flags = op.immediate ? frame_header::has_immediate : std::uint8_t(0);
  if (eager) {
    op.state_ = message_out::state::eager;
    if (op.what == message_out::kind::written) {
      f.header.type = frame_type::written;
      f.header.flags = frame_header::has_immediate;
      return true;
    }
    f.header.type = frame_type::message;
    f.header.length = static_cast<std::uint32_t>(op.bytes);
    f.payload_of_operation = true;
    ++count_.eager_sent;
  } else {
    op.state_ = message_out::state::offered;
    ++under_offer_;
    f.header.type = frame_type::offer;
    f.header.length = offer_payload::size;
    f.header.id = op.id_;
    encode(offer_payload{.memory = op.memory_}, f.payload);
    ++count_.offered;
  }
  return true;
}

void message_protocol::on_sent(const frame_header&, frame_operation* sent) {
  if (sent == nullptr)
    return;
  message_out& op = as_send(*sent);
  op.under_way_ = false;
  if (op.state_ == message_out::state::eager || op.answered_)
    finish(op, op.ec);
}

void message_protocol::on_dropped(const frame_header&, frame_operation* sent,
                                  const error_code& ec) {
  if (sent == nullptr)
    return;
  message_out& op = as_send(*sent);
  op.under_way_ = false;
  if (op.state_ == message_out::state::eager)
    finish(op, ec);
  else if (op.answered_)
    finish(op, op.ec);
}

bool message_protocol::on_answer(const frame_header& header) {
  const std::size_t index = header.id & 0xffff;
  if (index >= offers_.size() || offers_[index].send == nullptr)
    return false;
  message_out& op = *offers_[index].send;
  if (op.id_ != header.id || op.state_ != message_out::state::offered || op.answered_)
    return false;
  op.answered_ = true;
  if (header.type == frame_type::refused)
    op.ec = to_error(static_cast<refusal>(header.immediate));
  if (!op.under_way_)
    finish(op, op.ec);
  return true;
}

void message_protocol::finish(message_out& op, const error_code& ec) {
  if (op.state_ == message_out::state::offered) {
    --under_offer_;
    free_offer(op);
  }
  op.ec = ec;
  op.state_ = message_out::state::done;
  done_sends_.push_back(op);
}

void message_protocol::end_sends(const error_code& ec) {
  no_sends_ = ec;
  while (!queue_.empty()) {
    message_out& op = as_send(queue_.front());
    leave_queue(op);
    finish(op, ec);
  }
  for (offer& o : offers_) {
    if (o.send == nullptr || o.send->answered_)
      continue;
    o.send->answered_ = true;
    o.send->ec = ec;
    if (!o.send->under_way_)
      finish(*o.send, ec);
  }
}

// --- Receiving -------------------------------------------------------------------------------

link_part::disposition message_protocol::on_frame(const frame_header& header,
                                                  std::span<const std::byte> payload,
                                                  std::uint32_t slot, protocol_clock::time_point) {
  switch (header.type) {
  case frame_type::message:
    if (dropping_)
      return disposition::consumed;
    ++count_.eager_received;
    messages_.push_back({.place = message_in::place::slot,
                         .slot = slot,
                         .immediate = immediate_of(header),
                         .memory = {.size = header.length}});
    return disposition::held;
  case frame_type::written:
    if (dropping_)
      return disposition::consumed;
    written_.push_back({.slot = slot, .immediate = header.immediate});
    return disposition::held;
  case frame_type::offer:
    return on_offer(header, payload, slot);
  default:
    return on_answer(header) ? disposition::consumed : disposition::violation;
  }
}

link_part::disposition message_protocol::on_offer(const frame_header& header,
                                                  std::span<const std::byte> payload,
                                                  std::uint32_t slot) {
  offer_payload p;
  if (decode(payload, p) || unanswered_ == answers_.capacity())
    return disposition::violation;
  ++unanswered_;
  if (dropping_ || p.memory.size > options_.limit) {
    answers_.push_back({header.id, dropping_ ? refusal::closed : refusal::size});
    ++count_.refused;
    return disposition::consumed;
  }
  messages_.push_back({.where = entry::state::offered,
                       .place = message_in::place::pulled,
                       .slot = slot,
                       .id = header.id,
                       .immediate = immediate_of(header),
                       .memory = p.memory});
  ++unread_;
  return disposition::held;
}

bool message_protocol::next_control(outgoing_frame& f) {
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

void message_protocol::receive(message_in& op) {
  assert(!op.busy_ && !op.waiting_);
  ask_again();
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
  if (dropping_)
    finish(op, no_receives_);
}

bool message_protocol::cancel(message_in& op) {
  ask_again();
  if (!op.waiting_)
    return false;
  if (pinned_ != 0 && op.what == message_in::kind::message)
    // The receives behind it are now matched with other messages.
    unpin_from(
        static_cast<std::size_t>(std::distance(waiters_.begin(), request_list::s_iterator_to(op))));
  return leave(op, asio::error::operation_aborted);
}

void message_protocol::abandon(message_in& op) {
  ask_again();
  for (entry& e : messages_)
    if (e.into == &op)
      e.into = nullptr;
  op.busy_ = op.left_ = false;
}

// Removes the receive from the queue. Returns false if it must wait until its memory is no longer
// in use.
bool message_protocol::leave(message_in& op, const error_code& ec) {
  stop_waiting(op);
  op.ec = ec;
  op.left_ = op.busy_;
  return !op.busy_;
}

void message_protocol::match() {
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
    deliver(op, e);
    messages_.pop_front();
  }
}

void message_protocol::match_written() {
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

void message_protocol::deliver(message_in& op, entry& e) {
  op.bytes = e.memory.size;
  op.immediate = e.immediate;
  op.where = e.place;
  op.slot = e.slot;
  if (e.place != message_in::place::slot)
    link_.release(e.slot);
  if (e.pinned())
    answers_.push_back({e.id, {}});
  finish(op, {});
}

void message_protocol::stop_waiting(message_in& op) {
  op.waiting_ = false;
  if (op.what == message_in::kind::written) {
    written_waiters_.erase(request_list::s_iterator_to(op));
  } else {
    waiters_.erase(request_list::s_iterator_to(op));
    --waiting_;
    if (std::exchange(op.pinned_, false))
      --pinned_;
  }
}

void message_protocol::finish(message_in& op, const error_code& ec) {
  stop_waiting(op);
  op.ec = ec;
  done_receives_.push_back(op);
}

// --- Reading offers --------------------------------------------------------------------------

bool message_protocol::next_pull(message_action& a) {
  if (unread_ == 0 || pulling_ == options_.pulls || link_.stopped())
    return false;
  std::uint64_t ahead = 0; // bytes read before a receive was started
  auto waiter = waiters_.begin();
  for (entry& e : messages_) {
    message_in* const op = waiter != waiters_.end() ? &as_receive(*waiter++) : nullptr;
    if (op == nullptr && e.place != message_in::place::slot) {
      if (e.memory.size > options_.prefetch - ahead)
        return false;
      ahead += e.memory.size;
    }
    if (e.where != entry::state::offered)
      continue;
    if (op != nullptr && (op->busy_ || e.memory.size > op->capacity))
      continue; // to be read later, into memory of this receive or of another one
    a.receive = op;
    e.where = entry::state::pulling;
    --unread_;
    ++pulling_;
    ++count_.pulled;
    a.what = message_action::kind::pull;
    a.slot = e.slot;
    a.memory = e.memory;
    return true;
  }
  return false;
}

message_protocol::inbox::iterator message_protocol::find(std::uint32_t slot) {
  return std::find_if(messages_.begin(), messages_.end(), [&](const entry& e) {
    return e.slot == slot && e.where == entry::state::pulling;
  });
}

void message_protocol::read_into(std::uint32_t slot, message_in& op) {
  assert(find(slot) != messages_.end() && op.waiting_);
  ask_again();
  const auto e = find(slot);
  e->place = message_in::place::direct;
  e->into = &op;
  op.pinned_ = true;
  ++pinned_;
}

void message_protocol::pulled(std::uint32_t slot) {
  ask_again();
  const auto e = find(slot);
  if (e == messages_.end())
    return; // the link was stopped in the meantime
  --pulling_;
  if (!dropping_) {
    if (e->spoiled) {
      e->where = entry::state::offered;
      ++unread_;
    } else {
      e->where = entry::state::whole;
      // A pinned message may still have to be read again before it is delivered, so it is answered
      // later.
      if (!e->pinned())
        answers_.push_back({e->id, {}});
    }
    return let_go(*e);
  }
  if (!e->spoiled)
    drop_pulled(*e);
  let_go(*e);
  answers_.push_back({e->id, refusal::closed});
  link_.release(e->slot);
  messages_.erase(e);
}

void message_protocol::refuse(std::uint32_t slot, refusal why) {
  ask_again();
  const auto e = find(slot);
  if (e == messages_.end())
    return;
  if (e->spoiled) // the next receive may have memory
    return pulled(slot);
  --pulling_;
  ++count_.refused;
  answers_.push_back({e->id, why});
  if (e->pinned()) {
    std::exchange(e->into, nullptr)->pinned_ = false;
    --pinned_;
  }
  unpin_from(static_cast<std::size_t>(e - messages_.begin()));
  link_.release(e->slot);
  messages_.erase(e);
}

// The receives from here on are now matched with other messages. Messages that were read into their
// memory are read again. Once the link has stopped they cannot be: the first of them and all
// messages behind it are lost.
void message_protocol::unpin_from(std::size_t index) {
  if (link_.stopped()) {
    index = std::min(index, messages_.size());
    const auto lost = std::find_if(messages_.begin() + static_cast<std::ptrdiff_t>(index),
                                   messages_.end(), [](const entry& e) { return e.pinned(); });
    for (auto e = lost; e != messages_.end(); ++e)
      if (e->pinned()) {
        e->into->pinned_ = false;
        --pinned_;
      }
    return drop_from(lost);
  }
  for (std::size_t i = index; i < messages_.size() && pinned_ != 0; ++i) {
    entry& e = messages_[i];
    if (!e.pinned())
      continue;
    e.into->pinned_ = false;
    --pinned_;
    e.place = message_in::place::pulled;
    if (e.where == entry::state::pulling) {
      e.spoiled = e.into->busy_ = true;
    } else {
      e.into = nullptr;
      e.where = entry::state::offered;
      ++unread_;
    }
  }
}

// Ends a receive that waited until its memory was no longer being read into.
void message_protocol::let_go(entry& e) {
  if (!std::exchange(e.spoiled, false) || e.into == nullptr)
    return;
  message_in& op = *std::exchange(e.into, nullptr);
  op.busy_ = false;
  if (std::exchange(op.left_, false))
    done_receives_.push_back(op);
}

void message_protocol::drop_pulled(const entry& e) {
  if (e.place == message_in::place::pulled && e.where != entry::state::offered)
    dropped_.push_back(e.slot);
}

void message_protocol::drop_from(inbox::iterator first) {
  for (auto e = first; e != messages_.end(); ++e) {
    drop_pulled(*e);
    link_.release(e->slot);
  }
  messages_.erase(first, messages_.end());
}

// --- The end ---------------------------------------------------------------------------------

void message_protocol::on_closing() {
  if (!no_sends_)
    no_sends_ = asio::error::operation_aborted;
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
    link_.release(e.slot);
  }
  messages_.erase(keep, messages_.end());
  drop_written();
  end_receives(no_receives_);
}

void message_protocol::drop_written() {
  for (const entry& e : written_)
    link_.release(e.slot);
  written_.clear();
}

void message_protocol::end_receives(const error_code& ec) {
  while (waiting_ != 0)
    if (message_in& op = as_receive(waiters_.front()); leave(op, ec))
      done_receives_.push_back(op);
  while (!written_waiters_.empty())
    finish(as_receive(written_waiters_.front()), ec);
}

bool message_protocol::drained() const {
  return queue_.empty() && under_offer_ == 0 && pulling_ == 0 && answers_.empty();
}

bool message_protocol::on_goodbye() {
  if (unread_ != 0 || pulling_ != 0 || pinned_ != 0 || (!answers_.empty() && !dropping_))
    return false;
  answers_.clear();
  if (!no_receives_)
    no_receives_ = asio::error::eof;
  end_sends(asio::error::broken_pipe);
  return true;
}

void message_protocol::on_stopped(const error_code& ec) {
  end_sends(ec);
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
  answers_.clear();
}

} // namespace asio_rdma::detail
