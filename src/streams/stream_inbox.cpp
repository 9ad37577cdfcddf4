// SPDX-License-Identifier: BSL-1.0
#include "streams/stream_inbox.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace asio_rdma::detail {

// There is at most one offer and one chunk for each receive.
stream_inbox::stream_inbox(frame_link& link, const stream_read_limits& o, bool reads)
    : link_(link),
      limits_(o),
      reads_(reads),
      pieces_(3 * std::size_t(link.options().receives)),
      offers_(link.options().receives),
      answers_(link.options().receives) {
  const std::uint32_t chunks = link.options().receives;
  free_chunks_.reserve(chunks);
  freed_chunks_.reserve(chunks);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    chunks_.emplace_back(i);
    free_chunks_.push_back(chunks - 1 - i);
  }
}

bool stream_inbox::on_data(std::uint32_t slot, std::uint32_t bytes) {
  if (pieces_.full()) // too many receives are held; the link reports that
    return false;
  pieces_.push_back({piece::kind::slot, slot, 0, bytes});
  return true;
}

// --- Offers ----------------------------------------------------------------------------------

bool stream_inbox::on_offer(std::uint32_t id, const remote_buffer& memory) {
  if (!reads_ || id != next_id_ || unanswered_ == offers_.size() ||
      memory.size > std::numeric_limits<std::uint32_t>::max())
    return false;
  ++next_id_;
  ++unanswered_;
  if (dropping_) {
    answers_.push_back({frame_type::dropped, id, 0});
    return true;
  }
  const auto free = std::find_if(offers_.begin(), offers_.end(), [](auto& o) { return !o.live; });
  *free = {.id = id, .rest = memory, .live = true};
  pieces_.push_back({piece::kind::offer, static_cast<std::uint32_t>(free - offers_.begin())});
  ++unread_;
  return true;
}

// The withdrawal may have crossed the answer to the same offer.
bool stream_inbox::on_withdraw(std::uint32_t id) {
  if (static_cast<std::int32_t>(id - next_id_) >= 0)
    return false;
  const auto o =
      std::find_if(offers_.begin(), offers_.end(), [id](auto& e) { return e.live && e.id == id; });
  if (o == offers_.end())
    return true;
  if (std::exchange(o->withdrawn, true))
    return false;
  if (&*o == taking_)
    stop_taking();
  answer_if_over(*o);
  return true;
}

void stream_inbox::answer_if_over(offer& o) {
  const bool cut = o.rest.size != 0;
  if (o.under_way != 0 || (cut && !o.withdrawn && !dropping_))
    return;
  if (cut && !dropping_) {
    pieces_.erase(piece_of(o));
    --unread_;
  }
  if (cut)
    answers_.push_back({dropping_ ? frame_type::dropped : frame_type::withdrawn, o.id, o.read});
  else
    answers_.push_back({frame_type::taken, o.id, 0});
  o.live = false;
}

bool stream_inbox::next_answer(outgoing_frame& f) {
  if (answers_.empty())
    return false;
  const answer a = answers_.front();
  answers_.pop_front();
  --unanswered_;
  f.header.type = a.what;
  f.header.id = a.id;
  f.header.immediate = a.value;
  return true;
}

// --- Reading them ----------------------------------------------------------------------------

stream_inbox::pieces::iterator stream_inbox::piece_of(const offer& o) {
  return std::find_if(pieces_.begin(), pieces_.end(), [&](const piece& p) {
    return p.what == piece::kind::offer && &offers_[p.index] == &o;
  });
}

stream_chunk* stream_inbox::next_pull(remote_buffer& from) {
  if (unread_ == 0 || is_taking() || held_back_ || free_chunks_.empty() ||
      ahead_ >= limits_.read_ahead)
    return nullptr;
  const auto p = std::find_if(pieces_.begin(), pieces_.end(), [this](const piece& e) {
    return e.what == piece::kind::offer && !offers_[e.index].withdrawn;
  });
  if (p == pieces_.end())
    return nullptr;
  stream_chunk& c = chunks_[free_chunks_.back()];
  c.offer_ = p->index;
  from = offers_[p->index].rest.first(
      std::min<std::uint64_t>(limits_.chunk, limits_.read_ahead - ahead_));
  c.bytes = static_cast<std::uint32_t>(from.size);
  return &c;
}

void stream_inbox::pulling(stream_chunk& c) {
  free_chunks_.pop_back();
  offer& o = offers_[c.offer_];
  o.rest += c.bytes;
  ++o.under_way;
  ++reading_;
  ahead_ += c.bytes;
  c.here_ = c.dropped_ = false;
  const auto p = piece_of(o);
  const piece added{piece::kind::chunk, c.index, 0, c.bytes};
  if (o.rest.size != 0) {
    pieces_.insert(p, added);
  } else {
    *p = added;
    --unread_;
  }
}

void stream_inbox::pulled(stream_chunk& c) {
  offer& o = offers_[c.offer_];
  --reading_;
  --o.under_way;
  o.read += c.bytes;
  c.here_ = true;
  if (c.dropped_)
    free(c);
  answer_if_over(o);
}

void stream_inbox::free(stream_chunk& c) {
  ahead_ -= c.bytes;
  held_back_ = false;
  freed_chunks_.push_back(c.index);
}

stream_chunk* stream_inbox::next_free() {
  if (freed_chunks_.empty())
    return nullptr;
  const std::uint32_t index = freed_chunks_.back();
  freed_chunks_.pop_back();
  free_chunks_.push_back(index);
  return &chunks_[index];
}

remote_buffer stream_inbox::offered(std::uint64_t most) const noexcept {
  if (pieces_.empty() || is_taking() || pieces_.front().what != piece::kind::offer)
    return {};
  const offer& o = offers_[pieces_.front().index];
  return o.withdrawn ? remote_buffer() : o.rest.first(most);
}

void stream_inbox::stop_taking() noexcept {
  if (taking_ != nullptr && !std::exchange(stopping_, true))
    stop_due_ = true;
}

void stream_inbox::taking() {
  stopping_ = false;
  taking_ = &offers_[pieces_.front().index];
  ++taking_->under_way;
  ++reading_;
}

void stream_inbox::took(std::uint64_t bytes, bool wanted) {
  offer& o = *std::exchange(taking_, nullptr);
  stop_due_ = false;
  --reading_;
  --o.under_way;
  if (wanted) {
    o.rest += bytes;
    o.read += static_cast<std::uint32_t>(bytes);
    taken_ += static_cast<std::uint32_t>(bytes);
    if (o.rest.size == 0 && !dropping_) {
      pieces_.pop_front();
      --unread_;
    }
  }
  answer_if_over(o);
}

// --- Taking ----------------------------------------------------------------------------------

bool stream_inbox::is_here(const piece& p) const noexcept {
  return p.what == piece::kind::slot || (p.what == piece::kind::chunk && chunks_[p.index].here_);
}

std::uint64_t stream_inbox::available() const noexcept {
  std::uint64_t result = 0;
  for (const piece& p : pieces_) {
    if (!is_here(p))
      break;
    result += p.left;
  }
  return result;
}

stream_inbox::part stream_inbox::take(std::uint64_t most) {
  piece& p = pieces_.front();
  part result;
  result.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(p.left, most));
  result.at = p.at;
  result.emptied = result.bytes == p.left;
  if (p.what == piece::kind::chunk)
    result.chunk = &chunks_[p.index];
  else
    result.slot = p.index;
  p.at += result.bytes;
  p.left -= result.bytes;
  taken_ += result.bytes;
  if (result.emptied) {
    pieces_.pop_front();
    if (result.chunk != nullptr)
      free(*result.chunk);
  }
  return result;
}

// --- The end ---------------------------------------------------------------------------------

stream_inbox::pieces::iterator stream_inbox::first_not_here() {
  return std::find_if_not(pieces_.begin(), pieces_.end(),
                          [this](const piece& p) { return is_here(p); });
}

// An offer that was not read completely is never at hand, so no offer is left.
void stream_inbox::drop_from(pieces::iterator first) {
  dropping_ = true;
  for (auto p = first; p != pieces_.end(); ++p) {
    if (p->what == piece::kind::slot) {
      link_.release(p->index);
    } else if (p->what == piece::kind::chunk) {
      stream_chunk& c = chunks_[p->index];
      c.dropped_ = true;
      if (c.here_)
        free(c);
    }
  }
  pieces_.erase(first, pieces_.end());
  unread_ = 0;
  stop_taking();
  for (offer& o : offers_)
    if (o.live)
      answer_if_over(o);
}

bool stream_inbox::stop() {
  const auto lost = first_not_here();
  const bool any = lost != pieces_.end();
  for (auto p = lost; p != pieces_.end(); ++p) {
    if (p->what == piece::kind::slot)
      link_.release(p->index);
    else if (p->what == piece::kind::chunk)
      free(chunks_[p->index]);
  }
  pieces_.erase(lost, pieces_.end());
  for (stream_chunk& c : chunks_) // chunks whose READ has failed
    if (std::exchange(c.dropped_, false) && !c.here_)
      free(c);
  unread_ = reading_ = unanswered_ = 0;
  taking_ = nullptr;
  stop_due_ = false;
  answers_.clear();
  return any;
}

} // namespace asio_rdma::detail
