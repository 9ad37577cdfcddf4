// SPDX-License-Identifier: BSL-1.0
#include "streams/stream_protocol.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace asio_rdma::detail {
namespace {

// In bytes. A peer may announce receives larger than a device sends at once.
constexpr std::uint32_t largest_frame = std::uint32_t(1) << 20;

stream_write& as_write(frame_operation& op) { return static_cast<stream_write&>(op); }
stream_read& as_read(frame_operation& op) { return static_cast<stream_read&>(op); }
stream_block& as_block(frame_operation& op) { return static_cast<stream_block&>(op); }

// A wait for a state succeeds when nothing more can arrive, as poll(2) reports it.
error_code of_wait(const error_code& ec) {
  return ec == asio::error::operation_aborted ? ec : error_code();
}

// If the device still uses the buffer, report that error first: the caller must not reuse the
// buffer.
error_code worse(const error_code& first, const error_code& second) {
  return second == error::device_keeps_memory || !first ? second : first;
}

} // namespace

stream_protocol::stream_protocol(frame_link& link, const stream_limits& o)
    : link_(link),
      frame_size_(std::min(link.options().peer_receive_size, largest_frame) -
                  static_cast<std::uint32_t>(frame_header::size)),
      block_size_(std::min(frame_size_, o.block_size)),
      offer_from_(o.reads ? std::max<std::uint64_t>(o.offer_from, frame_size_ + std::uint64_t(1))
                          : std::numeric_limits<std::uint64_t>::max()),
      direct_from_(o.direct_from),
      // The peer keeps an answer for each offer, be it of a block or of lent memory.
      offers_(std::min(o.offers, link.options().peer_receives / 2)),
      withdraws_(offers_),
      inbox_(link, o.inbox, o.reads) {
  const std::uint32_t large = o.large_block_size < offer_from_ ? 0 : offers_;
  has_large_blocks_ = large != 0;
  free_blocks_.reserve(o.blocks);
  free_large_blocks_.reserve(large);
  freed_blocks_.reserve(o.blocks + large);
  unanswered_.reserve(2 * std::size_t(offers_));
  for (std::uint32_t i = 0; i < o.blocks + large; ++i) {
    const bool is_large = i >= o.blocks;
    blocks_.emplace_back(i, is_large ? o.large_block_size : block_size_, is_large);
    (is_large ? free_large_blocks_ : free_blocks_).push_back(i);
  }
  link.add(*this, {frame_type::data, frame_type::offer, frame_type::taken, frame_type::withdraw,
                   frame_type::withdrawn, frame_type::dropped, frame_type::shutdown,
                   frame_type::query, frame_type::progress});
}

stream_action stream_protocol::next() {
  if (!may_act())
    return {};
  const stream_action a = next_action();
  if (a.what == stream_action::kind::none)
    idle();
  else
    ask_again(); // there may be something to send
  return a;
}

stream_action stream_protocol::next_action() {
  stream_action a;
  if (!freed_blocks_.empty()) {
    a.what = stream_action::kind::freed;
    a.block = &blocks_[freed_blocks_.back()];
    freed_blocks_.pop_back();
    (a.block->is_large ? free_large_blocks_ : free_blocks_).push_back(a.block->index);
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
  if (next_write(a) || next_expose(a) || next_pull(a) || next_read(a))
    return a;
  if (!done_writes_.empty()) {
    a.what = stream_action::kind::wrote;
    a.write = &as_write(done_writes_.front());
    done_writes_.pop_front();
  } else if (!done_reads_.empty()) {
    a.what = stream_action::kind::read;
    a.read = &as_read(done_reads_.front());
    done_reads_.pop_front();
  }
  return a;
}

// --- Writing ---------------------------------------------------------------------------------

void stream_source::start(way w) noexcept {
  way_ = w;
  ended_ = unanswered_ = withdrawn_ = false;
  under_way_ = 0;
  begun_ = frame_offset_ = taken_ = 0;
}

void stream_protocol::write(stream_write& op) {
  assert(!op.queued_ && op.under_way_ == 0);
  ask_again();
  op.ec = {};
  op.done = 0;
  op.queued_ = op.in_frames_ = false;
  const bool offers = op.what == stream_write::kind::lend && op.bytes >= offer_from_;
  op.start(offers ? stream_source::way::undecided : stream_source::way::frames);
  if (no_writes_)
    return finish(op, op.what == stream_write::kind::wait ? of_wait(no_writes_) : no_writes_);
  op.queued_ = true;
  writers_.push_back(op);
}

bool stream_protocol::has_room(const stream_block& b) noexcept {
  return b.bytes < b.capacity && b.way_ != stream_source::way::offer && b.begun_ == 0;
}

// Requires room in blocks of both sizes, so that a wait for room means the same for every write.
bool stream_protocol::has_room() const noexcept {
  return (!free_blocks_.empty() && (!free_large_blocks_.empty() || !has_large_blocks_)) ||
         (!pending_.empty() && has_room(static_cast<const stream_block&>(pending_.back())));
}

// Call only if there is room.
stream_block& stream_protocol::block_for(const stream_write& op) {
  const bool many =
      op.bytes - op.done >= offer_from_ && !op.in_frames_ && !free_large_blocks_.empty();
  if (!pending_.empty()) {
    stream_block& last = as_block(pending_.back());
    if (has_room(last) && (last.is_large || !many))
      return last;
  }
  std::vector<std::uint32_t>& from = many ? free_large_blocks_ : free_blocks_;
  stream_block& fresh = blocks_[from.back()];
  from.pop_back();
  fresh.bytes = 0;
  fresh.start(many ? stream_source::way::undecided : stream_source::way::frames);
  pending_.push_back(fresh);
  return fresh;
}

bool stream_protocol::next_write(stream_action& a) {
  while (!writers_.empty()) {
    stream_write& op = as_write(writers_.front());
    if (op.what == stream_write::kind::lend)
      return false;
    if (op.what == stream_write::kind::wait || op.done == op.bytes || !has_room()) {
      if ((op.done == 0 || (op.whole && op.done != op.bytes)) && !has_room())
        return false;
      leave_queue(op);
      finish(op, {});
      continue;
    }
    stream_block& b = block_for(op);
    a.what = stream_action::kind::fill;
    a.write = &op;
    a.block = &b;
    a.at = static_cast<std::uint32_t>(b.bytes);
    a.offset = op.done;
    a.bytes = static_cast<std::uint32_t>(std::min(b.capacity - b.bytes, op.bytes - op.done));
    b.bytes += a.bytes;
    op.done += a.bytes;
    return true;
  }
  return false;
}

void stream_protocol::no_memory(stream_write& op, stream_block& block, const error_code& ec) {
  ask_again();
  op.done -= block.bytes;
  pending_.erase(list::s_iterator_to(block));
  if (block.is_large) {
    free_large_blocks_.push_back(block.index);
    op.in_frames_ = true;
    return;
  }
  free_blocks_.push_back(block.index);
  leave_queue(op);
  finish(op, op.done == 0 || op.whole ? ec : error_code());
}

bool stream_protocol::cancel(stream_write& op) {
  ask_again();
  if (!op.queued_ && !op.unanswered_)
    return false;
  if (op.queued_) {
    leave_queue(op);
    if (op.done == 0 && op.begun_ == 0)
      return true;
  }
  if (!op.ec)
    op.ec = asio::error::operation_aborted;
  nothing_more_of(op);
  return false;
}

void stream_protocol::leave_queue(stream_write& op) {
  op.queued_ = false;
  op.ended_ = true;
  writers_.erase(list::s_iterator_to(op));
}

void stream_protocol::finish(stream_write& op, const error_code& ec) {
  op.ec = ec;
  done_writes_.push_back(op);
}

// Withdraws the outstanding offer. The answer says how many bytes the peer has read.
void stream_protocol::nothing_more_of(stream_source& s) {
  if (s.unanswered_ && !std::exchange(s.withdrawn_, true))
    withdraws_.push_back(s.id_);
  end_if_over(s);
}

void stream_protocol::end_if_over(stream_source& s) {
  if (!s.ended_ || s.under_way_ != 0 || s.unanswered_)
    return;
  if (s.is_block())
    freed_blocks_.push_back(as_block(s).index);
  else
    finish(as_write(s), as_write(s).ec);
}

// --- Frames and offers -----------------------------------------------------------------------

const stream_source* stream_protocol::next_source() const noexcept {
  if (!pending_.empty())
    return &static_cast<const stream_source&>(pending_.front());
  if (!writers_.empty() &&
      static_cast<const stream_write&>(writers_.front()).what == stream_write::kind::lend)
    return &static_cast<const stream_source&>(writers_.front());
  return nullptr;
}

bool stream_protocol::held_back(const stream_source& s) const noexcept {
  if (!s.is_block() || s.begun_ != 0)
    return false;
  const auto& b = static_cast<const stream_block&>(s);
  const bool followed =
      &pending_.back() != &s || shutdown_due_ || link_.closing() ||
      (!writers_.empty() &&
       static_cast<const stream_write&>(writers_.front()).what == stream_write::kind::lend);
  const bool waits = b.is_large ? !unanswered_.empty() : small_under_way_ != 0;
  return b.bytes < b.capacity && waits && !no_delay_ && !followed;
}

bool stream_protocol::next_expose(stream_action& a) {
  auto* const s = const_cast<stream_source*>(next_source());
  if (s == nullptr || s->way_ != stream_source::way::undecided || s->bytes < offer_from_ ||
      held_back(*s) || (!s->is_block() && lent_offers_ == offers_))
    return false;
  a.what = stream_action::kind::expose;
  a.source = s;
  return true;
}

void stream_protocol::exposed(stream_source& s, const remote_buffer& memory) {
  ask_again();
  s.memory_ = memory;
  s.way_ = stream_source::way::offer;
}

void stream_protocol::not_exposed(stream_source& s) {
  ask_again();
  s.way_ = stream_source::way::frames;
}

void stream_protocol::set_no_delay(bool on) noexcept {
  ask_again();
  no_delay_ = on;
}

bool stream_protocol::has_data() const {
  const stream_source* const s = next_source();
  if (s == nullptr)
    return shutdown_due_;
  return s->way_ == stream_source::way::offer || (in_frames(*s) && !held_back(*s));
}

bool stream_protocol::in_frames(const stream_source& s) const noexcept {
  return s.way_ == stream_source::way::frames ||
         (s.way_ == stream_source::way::undecided && s.bytes < offer_from_);
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
  if (s->way_ == stream_source::way::offer)
    offer(f, *s);
  else
    begin(f, *s);
  if (s->begun_ == s->bytes) {
    if (s->is_block()) {
      s->ended_ = true;
      pending_.pop_front();
    } else {
      leave_queue(as_write(*s));
    }
  }
  return true;
}

void stream_protocol::begin(outgoing_frame& f, stream_source& from) {
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(frame_size_, from.bytes - from.begun_));
  from.way_ = stream_source::way::frames;
  from.frame_offset_ = from.begun_;
  from.begun_ += bytes;
  f.header.type = frame_type::data;
  f.header.length = bytes;
  f.payload_of_operation = true;
  if (bytes < block_size_)
    ++small_under_way_;
}

void stream_protocol::offer(outgoing_frame& f, stream_source& from) {
  from.begun_ = from.bytes;
  from.id_ = next_offer_++;
  from.unanswered_ = true;
  unanswered_.push_back(&from);
  lent_offers_ += !from.is_block();
  f.header.type = frame_type::offer;
  f.header.length = offer_payload::size;
  f.header.id = from.id_;
  encode(offer_payload{.memory = from.memory_}, f.payload);
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

void stream_protocol::frame_ended(const frame_header& header, frame_operation& ended,
                                  const error_code& ec) {
  auto& s = static_cast<stream_source&>(ended);
  --s.under_way_;
  const bool data = header.type == frame_type::data;
  if (data && header.length < block_size_)
    --small_under_way_;
  if (!s.is_block()) {
    stream_write& op = as_write(s);
    if (!ec && data)
      op.done += header.length;
    else
      op.ec = worse(op.ec, ec);
  }
  end_if_over(s);
}

void stream_protocol::on_sent(const frame_header& header, frame_operation* op) {
  // Answers to the peer's own frames are no sign of progress.
  taken_ += header.type == frame_type::data || header.type == frame_type::offer;
  if (op != nullptr)
    frame_ended(header, *op, {});
}

void stream_protocol::on_dropped(const frame_header& header, frame_operation* op,
                                 const error_code& ec) {
  if (op != nullptr)
    frame_ended(header, *op, ec);
}

bool stream_protocol::on_answer(const frame_header& header) {
  const auto found = std::find_if(unanswered_.begin(), unanswered_.end(),
                                  [&](const stream_source* s) { return s->id_ == header.id; });
  if (found == unanswered_.end())
    return false;
  stream_source& s = **found;
  const bool all = header.type == frame_type::taken;
  if ((!all && header.immediate >= s.bytes) ||
      (header.type == frame_type::withdrawn && !s.withdrawn_))
    return false;
  s.taken_ = all ? s.bytes : header.immediate;
  s.unanswered_ = false;
  ++taken_;
  ++answered_;
  unanswered_.erase(found);
  withdraws_.erase(std::remove(withdraws_.begin(), withdraws_.end(), s.id_), withdraws_.end());
  if (!s.is_block()) {
    --lent_offers_;
    stream_write& op = as_write(s);
    op.done += s.taken_;
    if (all)
      op.ec = {}; // too late to cancel the write
    else if (!op.ec)
      op.ec = asio::error::broken_pipe;
  }
  end_if_over(s);
  if (header.type == frame_type::dropped)
    end_writes(asio::error::broken_pipe);
  return true;
}

bool stream_protocol::withdrawing() const noexcept {
  return std::any_of(unanswered_.begin(), unanswered_.end(),
                     [](const stream_source* s) { return s->withdrawn_; });
}

void stream_protocol::end_offers(const error_code& ec) {
  for (stream_source* const s : std::exchange(unanswered_, {})) {
    s->unanswered_ = false;
    if (!s->is_block() && !as_write(*s).ec)
      as_write(*s).ec = ec;
    end_if_over(*s);
  }
  lent_offers_ = 0;
  withdraws_.clear();
}

void stream_protocol::end_writes(const error_code& ec) {
  if (!no_writes_)
    no_writes_ = ec;
  while (!writers_.empty()) {
    stream_write& op = as_write(writers_.front());
    leave_queue(op);
    op.ec = op.what == stream_write::kind::wait ? of_wait(ec) : ec;
    if (op.what == stream_write::kind::copy && op.done != 0 && !op.whole)
      op.ec = {};
    end_if_over(op);
  }
  for (std::size_t i = 0; i != unanswered_.size(); ++i) {
    stream_source& s = *unanswered_[i];
    if (s.is_block())
      continue;
    if (!as_write(s).ec)
      as_write(s).ec = ec;
    nothing_more_of(s);
  }
}

void stream_protocol::shut_down_writes() {
  ask_again();
  if (!no_writes_)
    shutdown_due_ = true;
  end_writes(asio::error::broken_pipe);
  shut_writes_ = true;
  drop_if_shut_both_ways();
}

// --- Reading ---------------------------------------------------------------------------------

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
  case frame_type::progress:
    good = std::exchange(question_, question::none) == question::asked;
    taken_ += std::exchange(answer_, header.immediate) != header.immediate;
    break;
  default:
    good = on_answer(header);
  }
  return good ? disposition::consumed : disposition::violation;
}

link_part::disposition stream_protocol::on_bytes(const frame_header& header,
                                                 std::span<const std::byte> payload,
                                                 std::uint32_t slot) {
  if (peer_shut_down_)
    return disposition::violation;
  if (header.type == frame_type::offer) {
    offer_payload p;
    const bool good =
        header.flags == 0 && !decode(payload, p) && inbox_.on_offer(header.id, p.memory);
    return good ? disposition::consumed : disposition::violation;
  }
  if (dropping_)
    return disposition::consumed;
  return inbox_.on_data(slot, header.length) ? disposition::held : disposition::violation;
}

void stream_protocol::read(stream_read& op) {
  assert(!op.waiting_);
  ask_again();
  op.ec = {};
  op.done = 0;
  op.waiting_ = true;
  readers_.push_back(op);
  starved_ = {};
}

bool stream_protocol::cancel(stream_read& op) {
  ask_again();
  if (!op.waiting_)
    return false;
  if (inbox_.is_taking() && &readers_.front() == &op) {
    op.ec = asio::error::operation_aborted;
    inbox_.stop_taking();
    return false;
  }
  op.waiting_ = false;
  readers_.erase(list::s_iterator_to(op));
  return true;
}

void stream_protocol::pulling(stream_chunk& c) {
  ask_again();
  inbox_.pulling(c);
}

void stream_protocol::pulled(stream_chunk& c) {
  ask_again();
  inbox_.pulled(c);
}

void stream_protocol::no_memory(const error_code& ec) {
  ask_again();
  starved_ = ec;
}

bool stream_protocol::next_pull(stream_action& a) {
  if (link_.stopped())
    return false;
  if (!readers_.empty()) {
    stream_read& op = as_read(readers_.front());
    a.memory = inbox_.offered(op.direct && op.done == 0 ? op.capacity : 0);
    if (a.memory.size >= direct_from_) {
      inbox_.taking();
      a.what = stream_action::kind::pull_direct;
      a.read = &op;
      return true;
    }
  }
  a.chunk = starved_ ? nullptr : inbox_.next_pull(a.memory);
  if (a.chunk != nullptr)
    a.what = stream_action::kind::pull;
  return a.chunk != nullptr;
}

void stream_protocol::pulled(stream_read& op, std::uint64_t bytes) {
  ask_again();
  inbox_.took(bytes, !op.ec);
  if (!op.ec)
    op.done = bytes;
  if (op.ec || bytes != 0)
    finish(op, op.ec);
  else
    op.direct = false;
}

bool stream_protocol::next_read(stream_action& a) {
  while (!readers_.empty()) {
    stream_read& op = as_read(readers_.front());
    if (inbox_.is_taking())
      return false;
    if (!inbox_.has_bytes() || op.what == stream_read::kind::wait || op.done == op.capacity) {
      error_code ec;
      if (op.done == 0 && !inbox_.has_bytes()) {
        if (at_end())
          ec = no_reads_;
        else if (starved_ && inbox_.offered(1).size != 0)
          ec = starved_;
        else
          return false;
      }
      finish(op, op.what == stream_read::kind::wait ? of_wait(ec) : ec);
      continue;
    }
    const stream_inbox::part p = inbox_.take(op.capacity - op.done);
    a.what = stream_action::kind::take;
    a.read = &op;
    a.chunk = p.chunk;
    a.slot = p.slot;
    a.at = p.at;
    a.bytes = p.bytes;
    a.emptied = p.emptied;
    a.offset = op.done;
    op.done += a.bytes;
    if (op.what == stream_read::kind::piece)
      finish(op, {});
    return true;
  }
  return false;
}

void stream_protocol::finish(stream_read& op, const error_code& ec) {
  op.waiting_ = false;
  readers_.erase(list::s_iterator_to(op));
  op.ec = ec;
  done_reads_.push_back(op);
}

void stream_protocol::end_reads(const error_code& ec) {
  for (auto i = readers_.begin(); i != readers_.end();) {
    stream_read& op = as_read(*i++);
    if (inbox_.is_taking() && &op == &readers_.front()) {
      op.ec = ec;
      inbox_.stop_taking();
    } else
      finish(op, ec);
  }
}

void stream_protocol::shut_down_reads() {
  ask_again();
  no_waits_ = true;
  if (!no_reads_)
    no_reads_ = asio::error::eof;
  drop_if_shut_both_ways();
}

void stream_protocol::drop_if_shut_both_ways() {
  if (!shut_writes_ || !no_waits_)
    return;
  dropping_ = true;
  inbox_.drop_rest();
}

// --- The end ---------------------------------------------------------------------------------

void stream_protocol::drop_blocks() {
  while (!pending_.empty()) {
    stream_block& b = as_block(pending_.front());
    pending_.pop_front();
    b.ended_ = true;
    end_if_over(b);
  }
}

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
  shutdown_due_ = false;
  question_ = question::none;
  end_writes(asio::error::broken_pipe);
  end_offers(asio::error::broken_pipe);
  drop_blocks();
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
  shutdown_due_ = false;
  end_writes(ec);
  end_offers(ec);
  drop_blocks();
}

} // namespace asio_rdma::detail
