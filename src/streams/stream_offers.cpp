// SPDX-License-Identifier: BSL-1.0
// Offers of lent bytes, which the peer reads: their keys, answers and withdrawals.
#include "streams/stream_requests.hpp"

#include <algorithm>
#include <utility>

namespace asio_rdma::detail {

bool stream_protocol::next_expose(stream_action& a) {
  const stream_write* const lent = pending_.empty() ? next_lent() : nullptr;
  if (lent == nullptr || lent->way_ != stream_write::way::undecided ||
      unanswered_.size() == offers_)
    return false;
  a.what = stream_action::kind::expose;
  a.write = const_cast<stream_write*>(lent);
  return true;
}

void stream_protocol::exposed(stream_write& op, const remote_buffer& memory) {
  ask_again();
  op.memory_ = memory;
  op.way_ = stream_write::way::offer;
}

void stream_protocol::not_exposed(stream_write& op) {
  ask_again();
  op.way_ = stream_write::way::frames;
}

void stream_protocol::offer(outgoing_frame& f, stream_write& from) {
  from.begun_ = from.bytes;
  offered_ += from.bytes;
  from.id_ = next_offer_++;
  from.unanswered_ = true;
  unanswered_.push_back(&from);
  f.header.type = frame_type::offer;
  f.header.length = offer_payload::size;
  f.header.id = from.id_;
  encode(offer_payload{.memory = from.memory_}, f.payload);
}

// Withdraws the outstanding offer. The answer says how many bytes the peer has read.
void stream_protocol::nothing_more_of(stream_write& op) {
  if (op.unanswered_ && !std::exchange(op.withdrawn_, true))
    withdraws_.push_back(op.id_);
  end_if_over(op);
}

bool stream_protocol::on_answer(const frame_header& header) {
  const auto found = std::find_if(unanswered_.begin(), unanswered_.end(),
                                  [&](const stream_write* op) { return op->id_ == header.id; });
  if (found == unanswered_.end())
    return false;
  stream_write& op = **found;
  const bool all = header.type == frame_type::taken;
  if ((!all && header.immediate >= op.bytes) ||
      (header.type == frame_type::withdrawn && !op.withdrawn_))
    return false;
  op.taken_ = all ? op.bytes : header.immediate;
  op.unanswered_ = false;
  ++taken_;
  ++answered_;
  unanswered_.erase(found);
  withdraws_.erase(std::remove(withdraws_.begin(), withdraws_.end(), op.id_), withdraws_.end());
  op.done += op.taken_;
  if (all)
    op.ec = {}; // too late to cancel the write
  else if (!op.ec)
    op.ec = asio::error::broken_pipe;
  end_if_over(op);
  if (header.type == frame_type::dropped)
    end_writes(asio::error::broken_pipe);
  return true;
}

bool stream_protocol::withdrawing() const noexcept {
  return std::any_of(unanswered_.begin(), unanswered_.end(),
                     [](const stream_write* op) { return op->withdrawn_; });
}

void stream_protocol::end_offers(const error_code& ec) {
  for (stream_write* const op : std::exchange(unanswered_, {})) {
    op->unanswered_ = false;
    if (!op->ec)
      op->ec = ec;
    end_if_over(*op);
  }
  withdraws_.clear();
}

} // namespace asio_rdma::detail
