// SPDX-License-Identifier: BSL-1.0
#include "streams/stream_protocol.hpp"

#include "streams/stream_requests.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace asio_rdma::detail {

stream_protocol::stream_protocol(frame_link& link, const stream_limits& o, const tally* rounds)
    : link_(link),
      rounds_(rounds),
      block_size_(o.block_size),
      small_block_size_(std::min(o.small_block_size, o.block_size)),
      at_once_(std::min(o.at_once, small_block_size_ - 1)), // so that its frame is small
      lend_from_(o.lend_from),
      offer_from_(o.offer_from),
      direct_from_(o.direct_from),
      // The peer keeps an answer for each offer.
      offers_(o.reads ? std::min(o.offers, link.options().peer_receives) : 0),
      withdraws_(offers_),
      inbox_(link, o.inbox, o.reads) {
  free_blocks_.reserve(o.blocks);
  freed_blocks_.reserve(o.blocks);
  unanswered_.reserve(offers_);
  for (std::uint32_t i = 0; i < o.blocks; ++i) {
    blocks_.emplace_back(i);
    free_blocks_.push_back(i);
  }
  link.add(*this, {frame_type::data, frame_type::offer, frame_type::taken, frame_type::withdraw,
                   frame_type::withdrawn, frame_type::dropped, frame_type::shutdown,
                   frame_type::query, frame_type::progress, frame_type::no_data});
}

stream_action stream_protocol::next() {
  if (!may_act()) {
    assert(next_action().what == stream_action::kind::none); // else an event did not ask
    return {};
  }
  const stream_action a = next_action();
  if (a.what == stream_action::kind::none || is_at_rest())
    idle();
  else if (a.what == stream_action::kind::fill)
    ask_for_data();
  return a;
}

// Whether there is surely no action.
bool stream_protocol::is_at_rest() const noexcept {
  return writers_.empty() && readers_.empty() && done_writes_.empty() && done_reads_.empty() &&
         freed_blocks_.empty() && idle_ != idle_wait::due && inbox_.is_at_rest();
}

stream_action stream_protocol::next_action() {
  stream_action a;
  if (!freed_blocks_.empty()) {
    a.what = stream_action::kind::freed;
    a.block = &blocks_[freed_blocks_.back()];
    freed_blocks_.pop_back();
    free_blocks_.push_back(a.block->index);
    return a;
  }
  if (stream_chunk* const c = inbox_.next_free()) {
    a.what = stream_action::kind::freed;
    a.chunk = c;
    starved_ = {};
    return a;
  }
  if (inbox_.next_stop()) {
    a.what = stream_action::kind::stop;
    a.read = &as_read(readers_.front());
    return a;
  }
  if ((!writers_.empty() && (next_write(a) || next_expose(a))) ||
      (inbox_.unread() && next_pull(a)) || (!readers_.empty() && next_read(a)))
    return a;
  if (!done_writes_.empty()) {
    a.what = stream_action::kind::wrote;
    a.write = &as_write(done_writes_.front());
    done_writes_.pop_front();
  } else if (!done_reads_.empty()) {
    a.what = stream_action::kind::read;
    a.read = &as_read(done_reads_.front());
    done_reads_.pop_front();
  } else if (idle_ == idle_wait::due) {
    idle_ = idle_wait::asked;
    a.what = stream_action::kind::await_idle;
  }
  return a;
}

// --- Frames to the peer ----------------------------------------------------------------------

// The first write, if it is lent, and not all of it is in frames and blocks.
const stream_write* stream_protocol::next_lent() const noexcept {
  if (writers_.empty())
    return nullptr;
  const auto& first = static_cast<const stream_write&>(writers_.front());
  return first.what == stream_write::kind::lend && first.begun_ != first.bytes ? &first : nullptr;
}

const stream_source* stream_protocol::next_source() const noexcept {
  return pending_.empty() ? next_lent() : &static_cast<const stream_source&>(pending_.front());
}

bool stream_protocol::held_back(const stream_source& s) const noexcept {
  if (!s.is_block() || s.begun_ != 0)
    return false;
  const auto& b = static_cast<const stream_block&>(s);
  const bool followed =
      &pending_.back() != &s || shutdown_due_ || link_.closing() || next_lent() != nullptr;
  const bool waits =
      gathers() || (!no_delay_ && small_under_way_ != 0 && b.bytes < small_block_size_);
  return b.bytes < b.capacity && waits && !followed;
}

// As long as writes follow each other, their bytes are held, for a limited time.
void stream_protocol::on_idle(bool quiet) {
  ask_to_act();
  ask_for_data();
  const bool holds = !pending_.empty() && held_back(as_block(pending_.front()));
  const std::uint64_t held = holds ? as_block(pending_.front()).bytes : 0;
  const bool more = !quiet && held != 0 && held != held_ && idle_visits_ != most_idle_visits;
  held_ = more ? held : 0;
  idle_visits_ = more ? idle_visits_ + 1 : 0;
  idle_ = more ? idle_wait::due : idle_wait::none;
  if (!more)
    sent_in_.reset();
}

void stream_protocol::set_no_delay(bool on) noexcept {
  ask_again();
  no_delay_ = on;
}

bool stream_protocol::has_data() const {
  if (!pending_.empty())
    return !held_back(static_cast<const stream_source&>(pending_.front()));
  const stream_write* const lent = next_lent();
  return lent != nullptr ? lent->way_ != stream_write::way::undecided : shutdown_due_;
}

bool stream_protocol::next_data(outgoing_frame& f) {
  if (!has_data())
    return false;
  ++taken_; // if the data waited for room, the peer made it by reading
  auto* const s = const_cast<stream_source*>(next_source());
  if (s == nullptr) {
    shutdown_due_ = false;
    f.header.type = frame_type::shutdown;
    return true;
  }
  f.operation = s;
  ++s->under_way_;
  ++under_way_;
  if (!s->is_block() && as_write(*s).way_ == stream_write::way::offer)
    offer(f, as_write(*s));
  else
    begin(f, *s);
  if (s->begun_ == s->bytes) {
    if (s->is_block()) {
      s->ended_ = true;
      pending_.pop_front();
    } else {
      leave_queue(as_write(*s));
    }
    if (!writers_.empty())
      ask_to_act(); // the next write may be offered or copied now
  }
  return true;
}

void stream_protocol::begin(outgoing_frame& f, stream_source& from) {
  const auto bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(link_.peer_payload(), from.bytes - from.begun_));
  from.frame_offset_ = from.begun_;
  from.begun_ += bytes;
  framed_ += bytes;
  f.header.type = frame_type::data;
  f.header.length = bytes;
  f.header.immediate = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(from.bytes - from.begun_, std::numeric_limits<std::uint32_t>::max()));
  f.payload_of_operation = true;
  small_under_way_ += is_small(f.header);
  if (f.header.immediate == 0 && bytes < block_size_)
    sent_alone();
}

// Bytes were sent that end their source, and later writes could have shared their frame. So writes
// that follow in the same round of handlers share a block. If `on_idle` has sent the bytes, the
// round is the one that has just begun: its first write waits for the end of the round, too.
void stream_protocol::sent_alone() {
  if (idle_ != idle_wait::none || no_delay_ || link_.closing())
    return;
  if (rounds_ != nullptr) {
    sent_in_ = rounds_->value();
  } else {
    idle_ = idle_wait::due; // perhaps no write follows, but the end of the round must be noticed
    ask_to_act();
  }
}

bool stream_protocol::next_control(outgoing_frame& f) {
  if (inbox_.next_answer(f))
    return true;
  if (!withdraws_.empty()) {
    f.header.type = frame_type::withdraw;
    f.header.id = withdraws_.front();
    withdraws_.pop_front();
    return true;
  }
  if (no_data_ == notice::due) {
    no_data_ = notice::sent;
    f.header.type = frame_type::no_data;
    return true;
  }
  if (std::exchange(asked_, false)) {
    f.header.type = frame_type::progress;
    f.header.immediate = inbox_.taken();
    return true;
  }
  if (question_ != question::due)
    return false;
  question_ = question::asked;
  f.header.type = frame_type::query;
  return true;
}

void stream_protocol::ask() noexcept {
  ask_again();
  if (question_ == question::none && !link_.peer_closed())
    question_ = question::due;
}

// A small frame ends its source. Later writes could have shared the frame.
bool stream_protocol::is_small(const frame_header& data) const noexcept {
  return data.immediate == 0 && data.length < small_block_size_;
}

void stream_protocol::frame_ended(const frame_header& header, frame_operation& ended,
                                  const error_code& ec) {
  auto& s = static_cast<stream_source&>(ended);
  --s.under_way_;
  --under_way_;
  const bool data = header.type == frame_type::data;
  small_frame_ended(header, false);
  if (!s.is_block()) {
    stream_write& op = as_write(s);
    if (!ec && data)
      op.done += header.length;
    else
      op.ec = worse(op.ec, ec);
  }
  end_if_over(s);
}

void stream_protocol::small_frame_ended(const frame_header& header, bool at_once) noexcept {
  if (header.type != frame_type::data || !is_small(header))
    return;
  --small_under_way_;
  at_once_under_way_ -= at_once ? 1 : 0;
}

void stream_protocol::on_sent(const frame_header& header, frame_operation* op) {
  // Answers to the peer's own frames are no sign of progress.
  taken_ += header.type == frame_type::data || header.type == frame_type::offer;
  if (op != nullptr)
    frame_ended(header, *op, {});
  else
    small_frame_ended(header, true);
  if (!pending_.empty())
    ask_for_data(); // a block may have waited for the end of the frame
}

void stream_protocol::on_dropped(const frame_header& header, frame_operation* op,
                                 const error_code& ec) {
  if (op != nullptr)
    frame_ended(header, *op, ec);
  else
    small_frame_ended(header, true);
}

// --- Frames of the peer ----------------------------------------------------------------------

link_part::disposition stream_protocol::on_frame(const frame_header& header,
                                                 std::span<const std::byte> payload,
                                                 std::uint32_t slot, protocol_clock::time_point) {
  bool good = false;
  switch (header.type) {
  case frame_type::data:
  case frame_type::offer:
    return on_bytes(header, payload, slot);
  case frame_type::withdraw:
    good = inbox_.on_withdraw(header.id);
    break;
  case frame_type::shutdown:
    good = !std::exchange(peer_shut_down_, true);
    if (!no_reads_)
      no_reads_ = asio::error::eof;
    break;
  case frame_type::query:
    good = !std::exchange(asked_, true);
    break;
  case frame_type::no_data:
    good = !std::exchange(peer_takes_no_data_, true);
    drop_writes(asio::error::broken_pipe);
    break;
  case frame_type::progress:
    good = std::exchange(question_, question::none) == question::asked &&
           on_progress(header.immediate);
    break;
  default:
    good = on_answer(header);
  }
  return good ? disposition::consumed : disposition::violation;
}

// The peer's application has taken so many bytes (modulo 2^32), of those that it has.
bool stream_protocol::on_progress(std::uint32_t bytes) noexcept {
  const std::uint32_t more = bytes - static_cast<std::uint32_t>(reported_);
  if (more > framed_ + offered_ - reported_)
    return false;
  reported_ += more;
  taken_ += more != 0;
  return true;
}

link_part::disposition stream_protocol::on_bytes(const frame_header& header,
                                                 std::span<const std::byte> payload,
                                                 std::uint32_t slot) {
  if (peer_shut_down_)
    return disposition::violation;
  if (!queues() && !has_copies_under_way())
    waited_for_ = false;
  if (header.type == frame_type::offer) {
    offer_payload p;
    const bool good =
        header.flags == 0 && !decode(payload, p) && inbox_.on_offer(header.id, p.memory);
    return good ? disposition::consumed : disposition::violation;
  }
  if (dropping_) {
    notify_of_drop();
    return disposition::consumed;
  }
  if (header.immediate != 0)
    link_.want_receives(std::uint64_t(header.length) + header.immediate);
  return inbox_.on_data(slot, header.length) ? disposition::held : disposition::violation;
}

// --- The end ---------------------------------------------------------------------------------

void stream_protocol::on_closing() {
  dropping_ = true;
  no_reads_ = asio::error::operation_aborted;
  inbox_.drop();
  end_reads(no_reads_);
  end_writes(asio::error::operation_aborted);
  shutdown_due_ = false; // the goodbye implies it
}

bool stream_protocol::drained() const {
  return writers_.empty() && pending_.empty() && unanswered_.empty() && !inbox_.reading() &&
         !inbox_.unanswered();
}

bool stream_protocol::on_goodbye() {
  if (inbox_.reading() || inbox_.unread() || (inbox_.unanswered() && !dropping_))
    return false;
  if (!no_reads_)
    no_reads_ = asio::error::eof;
  question_ = question::none;
  drop_writes(asio::error::broken_pipe);
  end_offers(asio::error::broken_pipe);
  return true;
}

void stream_protocol::on_stopped(const error_code& ec) {
  const bool taking = inbox_.is_taking();
  if (inbox_.stop() && !dropping_)
    no_reads_ = ec; // bytes before the peer's shutdown are lost
  if (!no_reads_)
    no_reads_ = ec;
  if (taking) {
    stream_read& op = as_read(readers_.front());
    finish(op, worse(op.ec, ec));
  }
  drop_writes(ec);
  end_offers(ec);
}

} // namespace asio_rdma::detail
