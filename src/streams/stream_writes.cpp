// SPDX-License-Identifier: BSL-1.0
// Writes: their queue, the blocks that they are copied to, and their end.
#include "streams/stream_requests.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

void stream_protocol::write(stream_write& op) {
  assert(!op.queued_ && op.under_way_ == 0);
  ask_to_act();
  ask_for_data();
  restart(op);
  op.ec = {};
  op.done = op.taken_ = 0;
  op.queued_ = op.in_small_blocks_ = op.unanswered_ = op.withdrawn_ = false;
  op.way_ = op.what == stream_write::kind::lend && offers(op.bytes) ? stream_write::way::undecided
                                                                    : stream_write::way::frames;
  if (no_writes_)
    return finish(op, op.what == stream_write::kind::wait ? of_wait(no_writes_) : no_writes_);
  op.queued_ = true;
  writers_.push_back(op);
  if (op.what == stream_write::kind::copy && idle_ == idle_wait::none && !no_delay_ && follows())
    idle_ = idle_wait::due;
}

// As `write`, the copy to a block and the frame of that block, without the block.
link_action stream_protocol::write_at_once(stream_write& op) {
  assert(op.what == stream_write::kind::copy && !op.queued_ && op.under_way_ == 0);
  const bool gathered =
      !no_delay_ && (idle_ != idle_wait::none || small_under_way_ != 0 || follows());
  if (op.bytes > std::min(at_once_, link_.peer_payload()) || gathered || queues() || no_writes_ ||
      !link_.may_send_at_once())
    return {};
  op.ec = {};
  op.done = op.bytes;
  op.frame_offset_ = op.taken_ = 0;
  framed_ += op.bytes;
  ++small_under_way_;
  ++at_once_under_way_;
  sent_alone();
  const auto length = static_cast<std::uint32_t>(op.bytes);
  return link_.send_at_once(*this, {.type = frame_type::data, .length = length}, op, false);
}

bool stream_protocol::lends(std::uint64_t bytes, bool contiguous) const noexcept {
  if (offers(bytes))
    return contiguous;
  return bytes >= offer_from_ ||
         (bytes >= lend_from_ && !waited_for_ && !queues() && bytes <= link_.peer_room());
}

// Whether the rest of a lent write is copied. It waits for the peer's application, and plain memory
// would not.
bool stream_protocol::copies_rest(const stream_write& op) const noexcept {
  if (!copies_ || op.in_place || op.way_ != stream_write::way::frames || under_way_ != 0 ||
      !link_.data_waits())
    return false;
  std::uint64_t room = std::uint64_t(free_blocks_.size()) * block_size_;
  if (!pending_.empty()) {
    const auto& last = static_cast<const stream_block&>(pending_.back());
    room += has_room(last) ? last.capacity - last.bytes : 0;
  }
  return op.bytes - op.begun_ <= room;
}

void stream_protocol::restart(stream_source& s) noexcept {
  s.ended_ = false;
  s.under_way_ = 0;
  s.begun_ = s.frame_offset_ = 0;
}

bool stream_protocol::has_room(const stream_block& b) noexcept {
  return b.bytes < b.capacity && b.begun_ == 0;
}

bool stream_protocol::has_room() const noexcept {
  return copies_ &&
         (!free_blocks_.empty() ||
          (!pending_.empty() && has_room(static_cast<const stream_block&>(pending_.back()))));
}

// Call only if there is room.
stream_block& stream_protocol::block_for(const stream_write& op) {
  if (!pending_.empty() && has_room(as_block(pending_.back())))
    return as_block(pending_.back());
  stream_block& fresh = blocks_[free_blocks_.back()];
  free_blocks_.pop_back();
  std::uint64_t left = op.in_small_blocks_ ? 0 : op.bytes - op.begun_;
  if (left > small_block_size_ && (gathers() || !pending_.empty()))
    left = block_size_; // later writes share it while it waits
  fresh.capacity =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(left, small_block_size_, block_size_));
  fresh.bytes = 0;
  restart(fresh);
  pending_.push_back(fresh);
  return fresh;
}

bool stream_protocol::next_write(stream_action& a) {
  while (!writers_.empty()) {
    stream_write& op = as_write(writers_.front());
    if (op.what == stream_write::kind::lend) {
      if (op.begun_ == op.bytes) {
        leave_queue(op);
        end_if_over(op);
        continue;
      }
      if (!copies_rest(op))
        return false;
    } else if (op.what == stream_write::kind::wait || op.done == op.bytes || !has_room()) {
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
    a.offset = op.begun_;
    a.bytes = static_cast<std::uint32_t>(std::min(b.capacity - b.bytes, op.bytes - op.begun_));
    b.bytes += a.bytes;
    op.begun_ += a.bytes;
    op.done += a.bytes;
    return true;
  }
  return false;
}

void stream_protocol::no_memory(stream_write& op, stream_block& block, const error_code& ec) {
  ask_again();
  op.begun_ -= block.bytes;
  op.done -= block.bytes;
  pending_.erase(frame_operation_list::s_iterator_to(block));
  free_blocks_.push_back(block.index);
  if (block.capacity > small_block_size_) {
    op.in_small_blocks_ = true;
    return;
  }
  if (op.what == stream_write::kind::lend) {
    op.in_place = true;
    return;
  }
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
  writers_.erase(frame_operation_list::s_iterator_to(op));
  if (next_lent() != nullptr)
    ask_for_data(); // its turn has come
}

void stream_protocol::finish(stream_write& op, const error_code& ec) {
  op.ec = ec;
  done_writes_.push_back(op);
}

void stream_protocol::end_if_over(stream_source& s) {
  if (!s.ended_ || s.under_way_ != 0)
    return;
  if (s.is_block())
    freed_blocks_.push_back(as_block(s).index);
  else if (!as_write(s).unanswered_) {
    waited_for_ = as_write(s).way_ == stream_write::way::frames;
    finish(as_write(s), as_write(s).ec);
  }
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
  for (stream_write* const op : unanswered_) {
    if (!op->ec)
      op->ec = ec;
    nothing_more_of(*op);
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

// The peer takes no more bytes. Answers to offers may still come.
void stream_protocol::drop_writes(const error_code& ec) {
  shutdown_due_ = false; // the peer does not wait for it
  end_writes(ec);
  while (!pending_.empty()) {
    stream_block& b = as_block(pending_.front());
    pending_.pop_front();
    b.ended_ = true;
    end_if_over(b);
  }
}

} // namespace asio_rdma::detail
