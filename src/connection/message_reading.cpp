// SPDX-License-Identifier: BSL-1.0
// Reading the messages that the peer has offered.
#include "connection/message_inbox.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

// Messages are received in order. So one that is not read ahead ends the look, else those behind it
// would keep the memory that it needs.
bool message_inbox::may_pull(const entry& e, const message_in& op) const noexcept {
  const std::uint64_t most = options_.pull_bytes;
  return op.direct || &e == &messages_.front() ||
         (pulled_bytes_ <= most && e.memory.size <= most - pulled_bytes_);
}

void message_inbox::uncount(entry& e) noexcept {
  if (std::exchange(e.counted, false))
    pulled_bytes_ -= e.memory.size;
}

bool message_inbox::next_pull(message_action& a) {
  if (unread_ == 0 || pulling_ == options_.pulls || link_.stopped() || puts_off_)
    return false;
  auto waiter = waiters_.begin();
  for (entry& e : messages_) {
    if (waiter == waiters_.end())
      return false;
    message_in& op = as_receive(*waiter++);
    if (e.where != entry::state::offered)
      continue;
    if (op.busy_ || e.memory.size > op.capacity)
      continue; // to be read later, into memory of this receive or of another one
    if (!may_pull(e, op))
      return false;
    // Later ones need not be offered, unless only the device may write to the receives' memory.
    if (!op.device_only && link_.may_grow_to(e.memory.size))
      link_.want_receives(e.memory.size);
    a.receive = &op;
    e.where = entry::state::pulling;
    e.counted = true;
    pulled_bytes_ += e.memory.size;
    --unread_;
    ++pulling_;
    a.what = message_action::kind::pull;
    a.slot = e.slot;
    a.memory = e.memory;
    return true;
  }
  return false;
}

message_inbox::queue::iterator message_inbox::find(std::uint32_t slot) {
  return std::find_if(messages_.begin(), messages_.end(), [&](const entry& e) {
    return e.slot == slot && e.where == entry::state::pulling;
  });
}

void message_inbox::read_into(std::uint32_t slot, message_in& op) {
  assert(find(slot) != messages_.end() && op.waiting_);
  const auto e = find(slot);
  uncount(*e);
  e->place = message_in::place::direct;
  e->into = &op;
  op.pinned_ = true;
  ++pinned_;
}

void message_inbox::pulled(std::uint32_t slot) {
  const auto e = find(slot);
  if (e == messages_.end())
    return; // the link was stopped in the meantime
  --pulling_;
  if (!dropping_) {
    if (e->spoiled) {
      e->where = entry::state::offered;
      ++unread_;
    } else {
      e->where = entry::state::whole;
      // A pinned message may still have to be read again before it is delivered, so it is answered
      // later.
      if (!e->pinned())
        answers_.push_back({e->id, {}});
    }
    return let_go(*e);
  }
  if (!e->spoiled)
    drop_pulled(*e);
  let_go(*e);
  answers_.push_back({e->id, refusal::closed});
  uncount(*e);
  link_.release(e->slot);
  messages_.erase(e);
}

void message_inbox::refuse(std::uint32_t slot, refusal why) {
  const auto e = find(slot);
  if (e == messages_.end())
    return;
  if (e->spoiled) // the next receive may have memory
    return pulled(slot);
  --pulling_;
  answers_.push_back({e->id, why});
  if (e->pinned()) {
    std::exchange(e->into, nullptr)->pinned_ = false;
    --pinned_;
  }
  unpin_from(static_cast<std::size_t>(e - messages_.begin()));
  uncount(*e);
  link_.release(e->slot);
  messages_.erase(e);
}

// The memory for the message is not there yet. It is read later, and so are those behind it.
void message_inbox::put_off(std::uint32_t slot) {
  const auto e = find(slot);
  assert(e != messages_.end());
  uncount(*e);
  e->where = entry::state::offered;
  ++unread_;
  --pulling_;
  puts_off_ = true;
}

// The receives from `index` on are now matched with other messages. Messages that were read into
// the memory of these receives are read again. A link that has stopped can read nothing: the first
// of these messages and all messages behind it are lost.
void message_inbox::unpin_from(std::size_t index) {
  if (link_.stopped()) {
    index = std::min(index, messages_.size());
    const auto lost = std::find_if(messages_.begin() + static_cast<std::ptrdiff_t>(index),
                                   messages_.end(), [](const entry& e) { return e.pinned(); });
    for (auto e = lost; e != messages_.end(); ++e)
      if (e->pinned()) {
        e->into->pinned_ = false;
        --pinned_;
      }
    return drop_from(lost);
  }
  for (std::size_t i = index; i < messages_.size() && pinned_ != 0; ++i) {
    entry& e = messages_[i];
    if (!e.pinned())
      continue;
    e.into->pinned_ = false;
    --pinned_;
    e.place = message_in::place::pulled;
    if (e.where == entry::state::pulling) {
      e.spoiled = e.into->busy_ = true;
    } else {
      e.into = nullptr;
      e.where = entry::state::offered;
      ++unread_;
    }
  }
}

// Ends a receive that waited until its memory was no longer being read into.
void message_inbox::let_go(entry& e) {
  if (!std::exchange(e.spoiled, false) || e.into == nullptr)
    return;
  message_in& op = *std::exchange(e.into, nullptr);
  op.busy_ = false;
  if (std::exchange(op.left_, false))
    done_receives_.push_back(op);
}

void message_inbox::drop_pulled(entry& e) {
  uncount(e);
  if (e.place == message_in::place::pulled && e.where != entry::state::offered)
    dropped_.push_back(e.slot);
}

void message_inbox::drop_from(queue::iterator first) {
  for (auto e = first; e != messages_.end(); ++e) {
    drop_pulled(*e);
    release(*e);
  }
  messages_.erase(first, messages_.end());
}

} // namespace asio_rdma::detail
