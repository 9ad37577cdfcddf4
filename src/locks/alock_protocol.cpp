// SPDX-License-Identifier: BSL-1.0
#include "locks/alock_protocol.hpp"

#include <cassert>
#include <tuple>
#include <utility>

namespace asio_rdma::detail {

template <class... Accesses>
alock_action alock_protocol::access(const Accesses&... accesses) noexcept {
  static_assert(sizeof...(accesses) <= std::tuple_size_v<decltype(chain_)>);
  std::size_t n = 0;
  ((chain_[n++] = accesses), ...);
  under_way_ = true;
  look_ = false;
  known_dead_ = dead_;
  return {.what = alock_action::kind::access, .chain = std::span(chain_).first(n)};
}

alock_action alock_protocol::next() noexcept {
  using kind = alock_action::kind;
  if (under_way_)
    return {};
  if (ec_ && !reported_) {
    reported_ = true;
    return {.what = kind::failed, .ec = ec_};
  }
  switch (state_) {
  case state::enter:
    // The descriptor is visible to other parties only once it is in the queue.
    return access(write(alock_word::next, 0, me_), write(alock_word::turn, alock_turn::wait, me_),
                  exchange_tail(other_, me_));
  case state::link:
    return access(write(alock_word::next, me_, other_));
  case state::turn:
    return look_ ? access(read(alock_word::turn, me_)) : alock_action{.what = kind::wait};
  case state::contend:
    return access(write(alock_word::victim, static_cast<std::uint64_t>(cohort_)),
                  read(alock_word::other_tail));
  case state::other:
    return look_ ? access(read(alock_word::other_tail), read(alock_word::victim))
                 : alock_action{.what = kind::poll};
  case state::granted:
    state_ = state::held;
    reported_ = true;
    return {.what = kind::granted};
  case state::held:
    return {};
  case state::leave:
    return access(exchange_tail(me_, turn_ == alock_turn::dead ? alock_abandoned : alock_free),
                  read(alock_word::next, me_));
  case state::successor:
    return look_ ? access(read(alock_word::next, me_)) : alock_action{.what = kind::poll};
  case state::hand_over:
    return access(write(alock_word::turn, turn_, other_));
  case state::wake:
    end({}, turn_ != alock_turn::dead);
    return {.what = kind::wake, .descriptor = other_};
  case state::ended:
    return {.what = kind::ended, .ec = ec_};
  }
  return {};
}

void alock_protocol::on_done(const error_code& ec) noexcept {
  assert(under_way_);
  under_way_ = false;
  if (ec)
    return end(ec, false);
  switch (state_) {
  case state::enter:
    return on_entered(chain_[2].seen);
  case state::link:
    state_ = state::turn;
    return;
  case state::turn:
    return on_turn(chain_[0].seen);
  case state::contend:
    return on_other(chain_[1].seen, false);
  case state::other:
    return on_other(chain_[0].seen, chain_[1].seen != static_cast<std::uint64_t>(cohort_));
  case state::leave:
    if (chain_[0].seen == me_)
      return end({}, turn_ != alock_turn::dead);
    state_ = state::successor;
    return on_successor(chain_[1].seen);
  case state::successor:
    return on_successor(chain_[0].seen);
  case state::hand_over:
    state_ = state::wake;
    return;
  case state::granted:
  case state::held:
  case state::wake:
  case state::ended:
    return;
  }
}

bool alock_protocol::on_refused(const error_code& ec) noexcept {
  assert(under_way_);
  const bool outside = state_ == state::enter;
  under_way_ = false;
  end(ec, outside);
  return outside;
}

bool alock_protocol::cancel() noexcept {
  if (reported_)
    return false;
  reported_ = cancelled_ = true;
  if (under_way_)
    return true;
  if (state_ == state::enter)
    end({}, true);
  else if (state_ == state::other)
    leave(alock_turn::contend);
  else if (state_ == state::granted || state_ == state::contend)
    leave(turn_);
  return true;
}

void alock_protocol::unlock() noexcept {
  assert(state_ == state::held);
  leave(turn_ - 1);
}

std::uint64_t alock_protocol::waits_for() const noexcept {
  return state_ == state::turn || (state_ == state::other && cohort_ == alock_cohort::local)
             ? other_
             : 0;
}

void alock_protocol::on_entered(std::uint64_t before) noexcept {
  if (before == alock_abandoned) {
    ec_ = error::owner_dead;
    return end({}, true);
  }
  if (before != std::exchange(other_, before)) {
    if (cancelled_)
      end({}, true);
    return; // try again with the value that was read
  }
  turn_ = alock_turn::contend;
  if (before != alock_free)
    state_ = state::link;
  else if (cancelled_)
    leave(turn_);
  else
    state_ = state::contend;
}

void alock_protocol::on_turn(std::uint64_t turn) noexcept {
  if (turn == alock_turn::wait) {
    if (known_dead_ != other_)
      return;
    turn = alock_turn::dead;
  }
  if (turn == alock_turn::dead)
    ec_ = error::owner_dead;
  if (turn == alock_turn::dead || cancelled_)
    return leave(turn);
  if (turn == alock_turn::contend) {
    turn_ = turn;
    state_ = state::contend;
    return;
  }
  won(turn);
}

void alock_protocol::on_other(std::uint64_t tail, bool other_is_victim) noexcept {
  if (cancelled_)
    return leave(alock_turn::contend);
  if (tail == alock_free || other_is_victim)
    return won(alock_turn::contend + budget_);
  // Only the device may change a value that it has written to the remote tail.
  if (cohort_ == alock_cohort::local && (tail == alock_abandoned || tail == known_dead_)) {
    ec_ = error::owner_dead;
    return leave(alock_turn::contend);
  }
  other_ = tail;
  state_ = state::other;
}

void alock_protocol::on_successor(std::uint64_t next) noexcept {
  if (next == 0)
    return;
  other_ = next;
  state_ = state::hand_over;
}

void alock_protocol::won(std::uint64_t turn) noexcept {
  turn_ = turn;
  state_ = state::granted;
}

void alock_protocol::leave(std::uint64_t turn) noexcept {
  assert(turn != alock_turn::wait); // the successor would wait forever
  turn_ = turn;
  state_ = state::leave;
}

void alock_protocol::end(const error_code& ec, bool reusable) noexcept {
  if (ec)
    ec_ = ec;
  state_ = state::ended;
  reusable_ = reusable;
}

} // namespace asio_rdma::detail
