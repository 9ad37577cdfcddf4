// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/stream_protocol.hpp>

#include <algorithm>
#include <utility>

namespace asio_rdma::detail {
namespace {

stream_write& as_write(frame_operation& op) { return static_cast<stream_write&>(op); }
stream_read& as_read(frame_operation& op) { return static_cast<stream_read&>(op); }
stream_block& as_block(frame_operation& op) { return static_cast<stream_block&>(op); }

// Who waits for a state has it when nothing is to be had any more, as poll(2) tells it.
error_code of_wait(const error_code& ec) {
  return ec == asio::error::operation_aborted ? ec : error_code();
}

} // namespace

stream_protocol::stream_protocol(frame_link& link, const stream_limits& o)
    : link_(link),
      frame_size_(link.options().peer_receive_size -
                  static_cast<std::uint32_t>(frame_header::size)),
      block_size_(std::min(frame_size_, o.block_size)),
      inbox_(link.options().receives) {
  free_blocks_.reserve(o.blocks);
  freed_blocks_.reserve(o.blocks);
  for (std::uint32_t i = 0; i < o.blocks; ++i) {
    blocks_.emplace_back(i);
    free_blocks_.push_back(o.blocks - 1 - i);
  }
  link.add(*this, {frame_type::data, frame_type::shutdown});
}

stream_action stream_protocol::next() {
  stream_action a;
  if (!freed_blocks_.empty()) {
    a.what = stream_action::kind::freed;
    a.block = &blocks_[freed_blocks_.back()];
    free_blocks_.push_back(freed_blocks_.back());
    freed_blocks_.pop_back();
    return a;
  }
  if (next_write(a) || next_read(a))
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

void stream_protocol::write(stream_write& op) {
  op.ec = {};
  op.done = op.begun_ = op.frame_offset_ = 0;
  op.under_way_ = 0;
  op.ended_ = op.queued_ = false;
  if (no_writes_)
    return finish(op, op.what == stream_write::kind::wait ? of_wait(no_writes_) : no_writes_);
  op.queued_ = true;
  writers_.push_back(op);
}

bool stream_protocol::has_room() const noexcept {
  return !free_blocks_.empty() ||
         (!pending_.empty() &&
          static_cast<const stream_block&>(pending_.back()).bytes < block_size_);
}

bool stream_protocol::next_write(stream_action& a) {
  while (!writers_.empty()) {
    stream_write& op = as_write(writers_.front());
    if (op.what == stream_write::kind::lend)
      return false;
    if (op.what == stream_write::kind::wait || op.done == op.bytes || !has_room()) {
      if (op.done == 0 && !has_room())
        return false;
      leave_queue(op);
      finish(op, {});
      continue;
    }
    if (pending_.empty() || as_block(pending_.back()).bytes == block_size_) {
      stream_block& fresh = blocks_[free_blocks_.back()];
      free_blocks_.pop_back();
      fresh.bytes = 0;
      pending_.push_back(fresh);
    }
    stream_block& b = as_block(pending_.back());
    a.what = stream_action::kind::fill;
    a.write = &op;
    a.block = &b;
    a.at = b.bytes;
    a.offset = op.done;
    a.bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(block_size_ - b.bytes, op.bytes - op.done));
    b.bytes += a.bytes;
    op.done += a.bytes;
    return true;
  }
  return false;
}

void stream_protocol::no_memory(stream_write& op, stream_block& block, const error_code& ec) {
  op.done -= block.bytes;
  pending_.erase(list::s_iterator_to(block));
  free_blocks_.push_back(block.index);
  leave_queue(op);
  finish(op, op.done == 0 ? ec : error_code());
}

bool stream_protocol::cancel(stream_write& op) {
  if (!op.queued_)
    return false;
  leave_queue(op);
  if (op.done == 0 && op.begun_ == 0)
    return true;
  op.ec = asio::error::operation_aborted;
  if (op.under_way_ == 0)
    finish(op, op.ec);
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

bool stream_protocol::held_back(const stream_block& b) const noexcept {
  const bool followed =
      !writers_.empty() &&
      static_cast<const stream_write&>(writers_.front()).what == stream_write::kind::lend;
  return b.bytes < block_size_ && small_under_way_ != 0 && !no_delay_ && !followed &&
         !shutdown_due_ && !link_.closing();
}

void stream_protocol::begin(outgoing_frame& f, stream_source& from, std::uint32_t bytes) {
  f.header.type = frame_type::data;
  f.header.length = bytes;
  f.payload_of_operation = true;
  f.operation = &from;
  if (bytes < block_size_)
    ++small_under_way_;
}

bool stream_protocol::has_data() const {
  if (!pending_.empty())
    return !held_back(
        static_cast<const stream_block&>(static_cast<const stream_source&>(pending_.front())));
  return shutdown_due_ ||
         (!writers_.empty() &&
          static_cast<const stream_write&>(writers_.front()).what == stream_write::kind::lend);
}

bool stream_protocol::next_data(outgoing_frame& f) {
  if (!has_data())
    return false;
  if (!pending_.empty()) {
    stream_block& b = as_block(pending_.front());
    pending_.pop_front();
    begin(f, b, b.bytes);
    return true;
  }
  if (!writers_.empty() && as_write(writers_.front()).what == stream_write::kind::lend) {
    stream_write& op = as_write(writers_.front());
    const auto bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(frame_size_, op.bytes - op.begun_));
    op.frame_offset_ = op.begun_;
    op.begun_ += bytes;
    ++op.under_way_;
    begin(f, op, bytes);
    if (op.begun_ == op.bytes)
      leave_queue(op);
    return true;
  }
  shutdown_due_ = false;
  f.header.type = frame_type::shutdown;
  return true;
}

void stream_protocol::frame_ended(const frame_header& header, frame_operation& ended,
                                  const error_code& ec) {
  if (header.length < block_size_)
    --small_under_way_;
  auto& source = static_cast<stream_source&>(ended);
  if (source.is_block()) {
    freed_blocks_.push_back(as_block(ended).index);
    return;
  }
  stream_write& op = as_write(ended);
  --op.under_way_;
  if (!ec)
    op.done += header.length;
  else if (!op.ec)
    op.ec = ec;
  if (op.ended_ && op.under_way_ == 0)
    finish(op, op.ec);
}

void stream_protocol::on_sent(const frame_header& header, frame_operation* op) {
  if (op != nullptr)
    frame_ended(header, *op, {});
}

void stream_protocol::on_dropped(const frame_header& header, frame_operation* op,
                                 const error_code& ec) {
  if (op != nullptr)
    frame_ended(header, *op, ec);
}

void stream_protocol::end_writes(const error_code& ec) {
  if (!no_writes_)
    no_writes_ = ec;
  while (!writers_.empty()) {
    stream_write& op = as_write(writers_.front());
    leave_queue(op);
    op.ec = op.what == stream_write::kind::wait ? of_wait(ec) : ec;
    if (op.what == stream_write::kind::copy && op.done != 0)
      op.ec = {};
    if (op.under_way_ == 0)
      finish(op, op.ec);
  }
}

void stream_protocol::shut_down_writes() {
  if (!no_writes_)
    shutdown_due_ = true;
  end_writes(asio::error::broken_pipe);
}

// --- Reading ---------------------------------------------------------------------------------

link_part::disposition stream_protocol::on_frame(const frame_header& header,
                                                 std::span<const std::byte>, std::uint32_t slot,
                                                 protocol_clock::time_point) {
  if (peer_shut_down_)
    return disposition::violation;
  if (header.type == frame_type::shutdown) {
    peer_shut_down_ = true;
    if (!no_reads_)
      no_reads_ = asio::error::eof;
    return disposition::consumed;
  }
  if (dropping_)
    return disposition::consumed;
  if (inbox_.full()) // the link finds that too many are held
    return disposition::violation;
  inbox_.push_back({slot, 0, header.length});
  available_ += header.length;
  return disposition::held;
}

void stream_protocol::read(stream_read& op) {
  op.ec = {};
  op.done = 0;
  op.waiting_ = true;
  readers_.push_back(op);
}

void stream_protocol::cancel(stream_read& op) {
  op.waiting_ = false;
  readers_.erase(list::s_iterator_to(op));
}

bool stream_protocol::next_read(stream_action& a) {
  while (!readers_.empty()) {
    stream_read& op = as_read(readers_.front());
    if (inbox_.empty() || op.what == stream_read::kind::wait || op.done == op.capacity) {
      if (op.done == 0 && !readable())
        return false;
      const bool ends = op.done == 0 && inbox_.empty();
      if (op.what == stream_read::kind::wait)
        finish(op, ends ? of_wait(no_reads_) : error_code());
      else
        finish(op, ends ? no_reads_ : error_code());
      continue;
    }
    piece& p = inbox_.front();
    a.what = stream_action::kind::take;
    a.read = &op;
    a.slot = p.slot;
    a.at = p.at;
    a.offset = op.done;
    a.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(p.left, op.capacity - op.done));
    a.emptied = a.bytes == p.left;
    op.done += a.bytes;
    available_ -= a.bytes;
    p.at += a.bytes;
    p.left -= a.bytes;
    if (a.emptied)
      inbox_.pop_front();
    if (op.what == stream_read::kind::piece)
      finish(op, {});
    return true;
  }
  return false;
}

void stream_protocol::finish(stream_read& op, const error_code& ec) {
  cancel(op);
  op.ec = ec;
  done_reads_.push_back(op);
}

void stream_protocol::end_reads(const error_code& ec) {
  while (!readers_.empty())
    finish(as_read(readers_.front()), ec);
}

void stream_protocol::shut_down_reads() {
  if (!no_reads_)
    no_reads_ = asio::error::eof;
}

// --- The end ---------------------------------------------------------------------------------

void stream_protocol::drop_inbox() {
  for (const piece& p : inbox_)
    link_.release(p.slot);
  inbox_.clear();
  available_ = 0;
}

void stream_protocol::drop_blocks() {
  while (!pending_.empty()) {
    freed_blocks_.push_back(as_block(pending_.front()).index);
    pending_.pop_front();
  }
}

void stream_protocol::on_closing() {
  dropping_ = true;
  no_reads_ = asio::error::operation_aborted;
  drop_inbox();
  end_reads(no_reads_);
  end_writes(asio::error::operation_aborted);
  shutdown_due_ = false; // the goodbye says it
}

bool stream_protocol::drained() const { return writers_.empty() && pending_.empty(); }

bool stream_protocol::on_goodbye() {
  if (!no_reads_)
    no_reads_ = asio::error::eof;
  shutdown_due_ = false;
  end_writes(asio::error::broken_pipe);
  drop_blocks();
  return true;
}

void stream_protocol::on_stopped(const error_code& ec) {
  if (!no_reads_)
    no_reads_ = ec;
  shutdown_due_ = false;
  end_writes(ec);
  drop_blocks();
}

} // namespace asio_rdma::detail
