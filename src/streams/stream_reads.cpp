// SPDX-License-Identifier: BSL-1.0
// Reads: their queue, READs of the peer's offers, and their end.
#include "streams/stream_requests.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

void stream_protocol::read(stream_read& op) {
  assert(!op.waiting_);
  op.ec = {};
  op.done = 0;
  op.waiting_ = true;
  readers_.push_back(op);
  const bool tries_again = bool(std::exchange(starved_, {}));
  if (readable() || inbox_.offered(1).size != 0 || tries_again)
    ask_to_act();
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
  readers_.erase(frame_operation_list::s_iterator_to(op));
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
    take(op, a);
    a.last = is_over(op) && done_reads_.empty(); // reads complete in order
    if (a.last)
      leave_queue(op);
    else if (op.what == stream_read::kind::piece)
      finish(op, {});
    return true;
  }
  return false;
}

void stream_protocol::take(stream_read& op, stream_action& a) {
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
}

// Whether a read that has taken bytes takes no more.
bool stream_protocol::is_over(const stream_read& op) const noexcept {
  return op.what == stream_read::kind::piece || op.done == op.capacity || !inbox_.has_bytes();
}

bool stream_protocol::read_at_once(stream_read& op, stream_action& a) {
  assert(!op.waiting_);
  if (op.done != 0
          ? is_over(op)
          : !readers_.empty() || !done_reads_.empty() || op.what == stream_read::kind::wait ||
                starved_ || inbox_.is_taking() || !inbox_.has_bytes())
    return false;
  op.ec = {};
  take(op, a);
  if (!inbox_.is_at_rest())
    ask_to_act(); // a chunk was freed, or there is room to read ahead
  return true;
}

void stream_protocol::leave_queue(stream_read& op) {
  op.waiting_ = false;
  readers_.erase(frame_operation_list::s_iterator_to(op));
}

void stream_protocol::finish(stream_read& op, const error_code& ec) {
  leave_queue(op);
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
  if (!shut_writes_ || !no_waits_ || std::exchange(dropping_, true))
    return;
  inbox_.drop_rest();
  // With fewer receives held, the peer gets credits to send data (docs/protocol.md, "Credits").
  // The share of shared receives may decrease to the promise.
  const credits& flow = link_.flow();
  if (flow.held() + credits::reserve + 1 >= std::min(flow.share(), flow.promise()))
    notify_of_drop();
}

// TCP answers dropped bytes by a reset; a stream answers them by `no_data`.
void stream_protocol::notify_of_drop() noexcept {
  if (no_data_ == notice::none && !link_.closing() && !peer_shut_down_)
    no_data_ = notice::due;
}

} // namespace asio_rdma::detail
