// SPDX-License-Identifier: BSL-1.0
// Offers of written bytes, which the peer reads: their keys, answers and withdrawals.
#include "streams/stream_requests.hpp"

#include <algorithm>
#include <utility>

namespace asio_rdma::detail {

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

// Withdraws the outstanding offer. The answer says how many bytes the peer has read.
void stream_protocol::nothing_more_of(stream_source& s) {
  if (s.unanswered_ && !std::exchange(s.withdrawn_, true))
    withdraws_.push_back(s.id_);
  end_if_over(s);
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

} // namespace asio_rdma::detail
