// SPDX-License-Identifier: BSL-1.0
#include "link/frame_link.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

namespace {

// The most credits that one frame returns.
constexpr std::uint32_t most_credits = 0xffff;

std::uint32_t promised(std::uint32_t promise, std::uint32_t receives) noexcept {
  return promise != 0 ? promise : receives;
}

} // namespace

bool frame_link::usable(const frame_options& o) noexcept {
  const auto enough = [](std::uint32_t promise, std::uint32_t receives) {
    return promised(promise, receives) >= credits::minimum && promise <= receives;
  };
  return enough(o.promise, o.receives) && enough(o.peer_promise, o.peer_receives) &&
         o.receive_size >= min_receive_size && o.peer_receive_size >= min_receive_size &&
         o.sends != 0;
}

frame_link::frame_link(const frame_options& o)
    : options_(o),
      credits_(o.receives, promised(o.promise, o.receives), o.peer_receives,
               promised(o.peer_promise, o.peer_receives)),
      sizes_(o.receive_size),
      peer_sizes_(o.peer_receive_size),
      reposts_(o.receives),
      sent_(o.sends),
      speak_(o.speaks_first),
      may_send_(!o.waits_for_peer) {
  if (o.receives > most_credits) // not all could be returned by one frame, as `resized` requires
    options_.max_receive_size = 0;
  free_.reserve(o.sends);
  for (std::uint32_t slot = o.sends; slot != 0; --slot)
    free_.push_back(slot - 1);
}

void frame_link::add(link_part& part, std::initializer_list<frame_type> types) {
  assert(parts_.size() < 8 && part.frames_ == nullptr);
  parts_.push_back(&part);
  part.frames_ = this;
  part.bit_ = static_cast<std::uint8_t>(1u << (parts_.size() - 1));
  part.ask_again();
  for (const frame_type t : types)
    part_of_[static_cast<std::size_t>(t)] = &part;
}

// --- Sending ---------------------------------------------------------------------------------

link_action frame_link::next() {
  assert(!asks_in_vain());
  if (stopped_)
    return {};
  news_ = false;
  const link_action a = next_action();
  news_ = news_ || a.what != link_action::kind::none;
  return a;
}

// Whether a part has data and has not asked to be asked for it.
bool frame_link::asks_in_vain() const {
  return !stopped_ && std::any_of(parts_.begin(), parts_.end(), [this](const link_part* p) {
    return (data_ & p->bit_) == 0 && p->has_data();
  });
}

link_action frame_link::next_action() {
  if (failure_) {
    if (std::exchange(failure_reported_, true))
      return {};
    return {.what = link_action::kind::fail, .ec = failure_};
  }
  if (const auto slot = next_freed())
    return {.what = link_action::kind::repost, .slot = *slot};
  if (goodbye_done_ && peer_closed_) {
    if (sends_under_way() != 0 || std::exchange(closed_reported_, true))
      return {};
    return {.what = link_action::kind::closed};
  }
  if (resizing_ == resize::wanted) {
    resizing_ = resize::none;
    return {.what = link_action::kind::grow, .size = wanted_size_};
  }
  if (!may_send_ || free_.empty() || !next_frame())
    return {};
  return send_frame(frame_.operation);
}

link_action frame_link::send_at_once(link_part& part, const frame_header& header,
                                     frame_operation& operation, bool reports) {
  assert(may_send_at_once() && control_ == 0 && data_ == 0);
  waits_for_credits_ = false;
  frame_.header = header;
  frame_.payload_of_operation = true;
  frame_.fenced = false;
  frame_.operation = &operation;
  frame_part_ = &part;
  return send_frame(reports ? &operation : nullptr);
}

link_action frame_link::send_frame(frame_operation* reports_to) {
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  frame_.header.credits = credits_.spend();
  if (waits_for_credits_ && !credits_.may_send_data())
    ask_parts_to_act(); // the wait goes on, perhaps because this control frame took a credit
  const std::uint32_t size = peer_sizes_.next();
  peer_sizes_.use();
  if (peer_sizes_.next() != size) // what did not fit may fit the next receive
    ask_all_again();
  if (frame_.header.type == frame_type::resized &&
      !sizes_.change(wanted_size_, credits_.with_peer()))
    assert(false); // there are fewer sizes than the record has room for
  sent_[slot] = {frame_.header, frame_part_, reports_to, true};
  return {.what = link_action::kind::send, .slot = slot, .frame = &frame_};
}

// The peer may keep one credit that it owes (docs/protocol.md, "Credits").
std::uint64_t frame_link::peer_room() const noexcept {
  const std::uint32_t left = credits::reserve + 1;
  return credits_.available() > left ? std::uint64_t(credits_.available() - left) * peer_payload()
                                     : 0;
}

bool frame_link::may_grow_to(std::uint64_t payload) const noexcept {
  return options_.max_receive_size >= frame_header::size &&
         payload <= options_.max_receive_size - frame_header::size;
}

// Sizes are powers of two, and a header, so that there are few changes.
void frame_link::want_receives(std::uint64_t payload) noexcept {
  const std::uint64_t most = options_.max_receive_size;
  const auto size = static_cast<std::uint32_t>(
      may_grow_to(payload) ? std::min(most, std::bit_ceil(payload) + frame_header::size) : most);
  if (resizing_ == resize::due || size <= std::max(sizes_.later(), wanted_size_))
    return;
  news_ = true;
  wanted_size_ = size;
  resizing_ = resize::wanted;
}

std::optional<std::uint32_t> frame_link::next_freed() {
  if (reposts_.empty())
    return {};
  const std::uint32_t slot = reposts_.front();
  reposts_.pop_front();
  return slot;
}

void frame_link::begin_frame(frame_type type) {
  frame_.header = {.type = type};
  frame_.payload_of_operation = frame_.fenced = false;
  frame_.operation = nullptr;
  frame_part_ = nullptr;
}

// `from`: the parts that may have such a frame.
bool frame_link::take(std::uint8_t& from, bool (link_part::*ask)(outgoing_frame&)) {
  while (from != 0) {
    const unsigned behind = from & (~0u << turn_); // the parts whose turn comes first
    const auto i = static_cast<unsigned>(std::countr_zero(behind != 0 ? behind : from));
    turn_ = i + 1;
    link_part* const part = parts_[i];
    begin_frame(frame_type::credits);
    if ((part->*ask)(frame_)) {
      frame_part_ = part;
      return true;
    }
    from = static_cast<std::uint8_t>(from & ~part->bit_);
  }
  return false;
}

bool frame_link::next_frame() {
  const bool may_speak = !goodbye_sent_;
  if (credits_.may_send_control() && may_speak) {
    if (resizing_ == resize::due) {
      resizing_ = resize::none;
      begin_frame(frame_type::resized);
      frame_.header.immediate = wanted_size_;
      return true;
    }
    if (control_ != 0 && take(control_, &link_part::next_control)) {
      frame_part_->ask_again();
      return true;
    }
    if (closing_ && all_drained()) {
      goodbye_sent_ = true;
      begin_frame(frame_type::goodbye);
      return true;
    }
  }
  if (!credits_.may_send_data())
    note_wait();
  else if (data_ != 0 && may_speak && take(data_, &link_part::next_data)) {
    waits_for_credits_ = false;
    return true;
  }
  const bool peer_sends = !peer_closed_ || !goodbye_sent_;
  if (std::exchange(speak_, false) || (credits_.should_return() && peer_sends)) {
    begin_frame(frame_type::credits);
    return true;
  }
  return false;
}

// Counts each wait once, even if `next` is called repeatedly during it.
void frame_link::note_wait() {
  if (waits_for_credits_ || goodbye_sent_ || data_ == 0 ||
      std::none_of(parts_.begin(), parts_.end(), [](link_part* p) { return p->has_data(); }))
    return;
  waits_for_credits_ = true;
  ++credit_waits_;
  ask_parts_to_act();
}

void frame_link::ask_parts_to_act() {
  for (link_part* const p : parts_)
    p->ask_to_act();
}

bool frame_link::all_drained() const {
  return std::all_of(parts_.begin(), parts_.end(), [](link_part* p) { return p->drained(); });
}

void frame_link::on_sent(std::uint32_t slot) {
  if (stopped_)
    return;
  assert(sent_[slot].under_way);
  sent_frame& s = sent_[slot];
  s.under_way = false;
  news_ = news_ || free_.empty(); // a frame may have waited for its place
  free_.push_back(slot);
  if (s.header.type == frame_type::goodbye)
    goodbye_done_ = news_ = true;
  if (s.part == nullptr)
    return;
  if (s.operation != nullptr)
    s.part->ask_to_act();
  s.part->on_sent(s.header, s.operation);
}

// --- Receiving -------------------------------------------------------------------------------

bool frame_link::on_received(std::uint32_t slot, std::span<const std::byte> frame,
                             std::optional<protocol_clock::time_point> at) {
  if (stopped_ || failure_)
    return false;
  frame_header h;
  if (decode(frame, h) || frame.size() > sizes_.next() || !credits_.arrived(h.credits)) {
    fail(error::protocol_violation);
    return false;
  }
  sizes_.use();
  news_ = news_ || !may_send_;
  may_send_ = true;
  note_credits();
  link_part* const part = part_of_[static_cast<std::size_t>(h.type)];
  auto what = link_part::disposition::consumed;
  if (peer_closed_ && h.type != frame_type::credits) {
    what = link_part::disposition::violation;
  } else if (h.type == frame_type::goodbye) {
    peer_closed_ = true;
    ask_all_again();
    for (link_part* const p : parts_)
      if (!p->on_goodbye())
        what = link_part::disposition::violation;
    closing_ = true;
  } else if (h.type == frame_type::resized) {
    if (h.immediate < peer_sizes_.later() || !peer_sizes_.change(h.immediate, credits_.available()))
      what = link_part::disposition::violation;
    ask_all_again();
  } else if (h.type != frame_type::credits && part == nullptr) {
    what = link_part::disposition::violation;
  } else if (h.type != frame_type::credits) {
    if (part->needs_time() && !at)
      at = protocol_clock::now();
    what = part->on_frame(h, frame.subspan(frame_header::size), slot,
                          at.value_or(protocol_clock::time_point()));
    what == link_part::disposition::held ? part->ask_to_act() : part->ask_again();
  }
  if (what == link_part::disposition::violation ||
      (what == link_part::disposition::held && !credits_.hold())) {
    fail(error::protocol_violation);
    return what == link_part::disposition::held;
  }
  if (what == link_part::disposition::consumed)
    reposts_.push_back(slot);
  return true;
}

void frame_link::release(std::uint32_t slot) {
  credits_.release();
  reposts_.push_back(slot);
}

// --- The end ---------------------------------------------------------------------------------

void frame_link::close() {
  closing_ = news_ = true;
  if (std::exchange(closed_here_, true) || stopped_)
    return;
  ask_all_again();
  for (link_part* const p : parts_)
    p->on_closing();
}

void frame_link::stop(const error_code& why) {
  if (std::exchange(stopped_, true))
    return;
  for (sent_frame& s : sent_)
    if (std::exchange(s.under_way, false) && s.part != nullptr)
      s.part->on_dropped(s.header, s.operation, why);
  ask_all_again();
  for (link_part* const p : parts_)
    p->on_stopped(why);
}

void frame_link::ask_all_again() noexcept {
  for (link_part* const p : parts_)
    p->ask_again();
}

void frame_link::fail(const error_code& why) noexcept {
  if (failure_)
    return;
  news_ = true;
  failure_ = why;
}

} // namespace asio_rdma::detail
