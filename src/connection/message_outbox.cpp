// SPDX-License-Identifier: BSL-1.0
#include "connection/message_outbox.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <utility>

namespace asio_rdma::detail {
namespace {

message_out& as_send(frame_operation& op) { return static_cast<message_out&>(op); }

void set_immediate(frame_header& h, const message_out& op) noexcept {
  h.immediate = op.immediate.value_or(0);
  h.flags = op.immediate ? frame_header::has_immediate : std::uint8_t(0);
}

} // namespace

message_outbox::message_outbox(const frame_link& link, const message_options& o)
    : link_(link), next_prepare_(queue_.end()), gather_(o.gather), small_(o.small) {
  // The peer keeps an answer for each offer.
  const std::uint32_t most = std::min(link.options().peer_receives,
                                      std::uint32_t(std::numeric_limits<std::uint16_t>::max()));
  offers_.resize(std::clamp<std::uint32_t>(o.offers, 1, most));
  free_offers_.reserve(offers_.size());
  for (std::size_t i = offers_.size(); i != 0; --i)
    free_offers_.push_back(static_cast<std::uint16_t>(i - 1));
}

bool message_outbox::send(message_out& op) {
  assert(op.state_ == message_out::state::idle || op.state_ == message_out::state::done);
  op.ec = {};
  op.under_way_ = op.answered_ = false;
  if (no_sends_) {
    finish(op, no_sends_);
    return true;
  }
  op.state_ = message_out::state::waiting;
  queue_.push_back(op);
  entered(op);
  if (next_prepare_ == queue_.end())
    next_prepare_ = std::prev(queue_.end());
  return !is_eager(op);
}

bool message_outbox::next_sent(message_action& a) {
  if (done_sends_.empty())
    return false;
  a.what = message_action::kind::sent;
  a.send = &as_send(done_sends_.front());
  done_sends_.pop_front();
  return true;
}

bool message_outbox::next_prepare(message_action& a) {
  for (; next_prepare_ != queue_.end() && !free_offers_.empty(); ++next_prepare_) {
    message_out& op = as_send(*next_prepare_);
    if (is_eager(op))
      continue;
    const std::uint16_t index = free_offers_.back();
    free_offers_.pop_back();
    offers_[index].send = &op;
    op.id_ = index | static_cast<std::uint32_t>(offers_[index].generation) << 16;
    left(op);
    op.state_ = message_out::state::preparing;
    entered(op);
    ++next_prepare_;
    a.what = message_action::kind::prepare;
    a.send = &op;
    return true;
  }
  return false;
}

void message_outbox::prepared(message_out& op, const remote_buffer& memory) {
  if (op.state_ != message_out::state::preparing)
    return; // the operation has ended in the meantime
  op.memory_ = memory;
  op.state_ = message_out::state::ready;
}

void message_outbox::fail_send(message_out& op, const error_code& ec) {
  if (op.state_ != message_out::state::preparing)
    return;
  leave_queue(op);
  finish(op, ec);
}

bool message_outbox::cancel(message_out& op) {
  if (op.state_ != message_out::state::waiting && op.state_ != message_out::state::preparing &&
      op.state_ != message_out::state::ready)
    return false;
  leave_queue(op);
  op.state_ = message_out::state::idle;
  return true;
}

void message_outbox::leave_queue(message_out& op) {
  const auto i = frame_operation_list::s_iterator_to(op);
  if (i == next_prepare_)
    ++next_prepare_;
  queue_.erase(i);
  left(op);
  if (op.state_ != message_out::state::waiting && op.state_ != message_out::state::idle)
    free_offer(op);
}

void message_outbox::free_offer(message_out& op) {
  assert((op.id_ & 0xffff) < offers_.size() && offers_[op.id_ & 0xffff].send == &op);
  const auto index = static_cast<std::uint16_t>(op.id_);
  offers_[index].send = nullptr;
  ++offers_[index].generation;
  free_offers_.push_back(index);
}

bool message_outbox::is_eager(const message_out& op) const noexcept {
  // A message whose key was requested is offered, also if the peer's receives have grown meanwhile.
  return op.what == message_out::kind::written ||
         (op.state_ == message_out::state::waiting && op.bytes <= eager_size());
}

bool message_outbox::has_data() const {
  if (queue_.empty())
    return false;
  const auto& op = static_cast<const message_out&>(queue_.front());
  return is_eager(op) ? !gathers() : op.state_ == message_out::state::ready;
}

message_out& message_outbox::take_first() {
  message_out& op = as_send(queue_.front());
  if (next_prepare_ == queue_.begin())
    ++next_prepare_;
  queue_.pop_front();
  left(op);
  op.under_way_ = true;
  return op;
}

bool message_outbox::next_data(outgoing_frame& f) {
  if (!has_data())
    return false;
  const bool eager = is_eager(as_send(queue_.front())), small = is_small(as_send(queue_.front()));
  message_out& op = take_first();
  f.operation = &op;
  if (eager) {
    begin_eager(op, small, f.header);
    f.payload_of_operation = op.what == message_out::kind::message;
    if (small)
      fill_together(op, f);
  } else {
    op.state_ = message_out::state::offered;
    ++under_offer_;
    set_immediate(f.header, op);
    f.header.type = frame_type::offer;
    f.header.length = offer_payload::size;
    f.header.id = op.id_;
    encode(offer_payload{.memory = op.memory_}, f.payload);
  }
  return true;
}

void message_outbox::begin_eager(message_out& op, bool small, frame_header& header) {
  op.state_ = message_out::state::eager;
  set_immediate(header, op);
  if (op.what == message_out::kind::written) {
    header.type = frame_type::written;
    header.flags = frame_header::has_immediate;
    return;
  }
  header.type = frame_type::message;
  header.length = static_cast<std::uint32_t>(op.bytes);
  op.leads_ = small;
  small_frames_ += small ? 1 : 0;
}

// As `send` and `next_data`.
bool message_outbox::send_at_once(message_out& op, frame_header& header) {
  assert(op.state_ == message_out::state::idle || op.state_ == message_out::state::done);
  if (!queue_.empty() || no_sends_ || op.what != message_out::kind::message ||
      op.bytes > eager_size())
    return false;
  const auto before = std::exchange(op.state_, message_out::state::waiting);
  const bool small = is_small(op);
  if (may_be_small(op) && (small_frames_ != 0 || idle_ != idle_wait::none)) {
    op.state_ = before;
    return false;
  }
  op.ec = {};
  op.under_way_ = true;
  op.answered_ = false;
  begin_eager(op, small, header);
  return true;
}

// --- Small messages ---------------------------------------------------------------------------

bool message_outbox::is_small(const message_out& op) const noexcept {
  return may_be_small(op) && is_eager(op) && gathered_size(op.bytes) <= gather_room();
}

// Whether the message is small if the peer's receives are large enough. It remains so while the
// message waits.
bool message_outbox::may_be_small(const message_out& op) const noexcept {
  return op.what == message_out::kind::message && op.state_ == message_out::state::waiting &&
         !op.device_only && op.bytes <= small_;
}

void message_outbox::entered(const message_out& op) noexcept {
  ++queued_;
  queued_bytes_ += gathered_size(op.bytes);
  queued_large_ += may_be_small(op) ? 0u : 1u;
}

void message_outbox::left(const message_out& op) noexcept {
  assert(queued_ != 0);
  --queued_;
  queued_bytes_ -= gathered_size(op.bytes);
  queued_large_ -= may_be_small(op) ? 0u : 1u;
}

std::uint64_t message_outbox::gather_room() const noexcept {
  return std::min<std::uint64_t>(gather_, eager_size());
}

// Whether the messages in the queue wait for more.
bool message_outbox::gathers() const {
  if (small_frames_ == 0 && idle_ == idle_wait::none)
    return false;
  return queued_large_ == 0 && queued_ < most_gathered &&
         queued_bytes_ + gathered_header::size <= gather_room();
}

// Adds the messages that follow to the frame of `first`. One message alone needs no header of its
// own.
void message_outbox::fill_together(message_out& first, outgoing_frame& f) {
  std::uint64_t bytes = gathered_size(first.bytes);
  std::uint32_t count = 1;
  for (message_out* last = &first; !queue_.empty() && count != most_gathered; ++count) {
    const message_out& next = as_send(queue_.front());
    bytes += gathered_size(next.bytes);
    if (!is_small(next) || bytes > gather_room())
      break;
    last->together_ = &take_first();
    last = last->together_;
    last->state_ = message_out::state::eager;
    f.header = {.type = frame_type::gathered, .length = static_cast<std::uint32_t>(bytes)};
  }
}

bool message_outbox::next_wait(message_action& a) {
  if (idle_ != idle_wait::due)
    return false;
  idle_ = idle_wait::asked;
  a.what = message_action::kind::await_idle;
  return true;
}

// --- Completions -------------------------------------------------------------------------------

void message_outbox::on_sent(frame_operation* sent) {
  if (sent == nullptr)
    return;
  message_out& op = as_send(*sent);
  if (op.leads_) {
    const bool more = op.together_ != nullptr || !queue_.empty();
    end_together(op, {});
    if (more && small_frames_ == 0 && idle_ == idle_wait::none)
      idle_ = idle_wait::due;
    return;
  }
  op.under_way_ = false;
  if (op.state_ == message_out::state::eager || op.answered_)
    finish(op, op.ec);
}

void message_outbox::on_dropped(frame_operation* sent, const error_code& ec) {
  if (sent == nullptr)
    return;
  message_out& op = as_send(*sent);
  if (op.leads_)
    return end_together(op, ec);
  op.under_way_ = false;
  if (op.state_ == message_out::state::eager)
    finish(op, ec);
  else if (op.answered_)
    finish(op, op.ec);
}

void message_outbox::end_together(message_out& first, const error_code& ec) {
  --small_frames_;
  first.leads_ = false;
  for (message_out* op = &first; op != nullptr;) {
    message_out* const next = std::exchange(op->together_, nullptr);
    op->under_way_ = false;
    finish(*op, ec);
    op = next;
  }
}

bool message_outbox::on_answer(const frame_header& header) {
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

void message_outbox::finish(message_out& op, const error_code& ec) {
  if (op.state_ == message_out::state::offered) {
    --under_offer_;
    free_offer(op);
  }
  op.ec = ec;
  op.state_ = message_out::state::done;
  done_sends_.push_back(op);
}

void message_outbox::close() {
  if (!no_sends_)
    no_sends_ = asio::error::operation_aborted;
}

void message_outbox::end_sends(const error_code& ec) {
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

} // namespace asio_rdma::detail
