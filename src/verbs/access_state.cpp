// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/access_state.hpp>

#include <algorithm>
#include <cassert>
#include <mutex>

namespace asio_rdma::detail {

// A range that overlaps `node` begins at most `longest_` bytes before it.
bool access_state::is_free(const access_node& node) const noexcept {
  assert(mutex_.is_locked());
  if (kept_)
    return false;
  if (active_.empty())
    return true;
  const std::uintptr_t from = node.begin > longest_ ? node.begin - longest_ : 0;
  for (auto i = active_.lower_bound(from); i != active_.end() && i->begin < node.end; ++i)
    if (i->conflicts_with(node))
      return false;
  return true;
}

bool access_state::is_behind(const access_node& node,
                             access_waiters::const_iterator last) const noexcept {
  assert(mutex_.is_locked());
  return std::any_of(waiters_.begin(), last,
                     [&node](const access_waiter& w) { return w.wanted->conflicts_with(node); });
}

bool access_state::begin(access_node& node) noexcept {
  if (!is_free(node))
    return false;
  longest_ = active_.empty() ? node.end - node.begin : std::max(longest_, node.end - node.begin);
  active_.insert(node);
  return node.granted = true;
}

bool access_state::try_begin(access_node& node) noexcept {
  assert(node.begin <= node.end && !node.granted);
  if (node.begin == node.end)
    return node.granted = true;
  const std::lock_guard lock(mutex_);
  return !is_behind(node, waiters_.end()) && begin(node);
}

access_waiters access_state::end(access_node& node) noexcept {
  assert(node.granted);
  access_waiters granted;
  node.granted = false;
  if (node.begin == node.end)
    return granted;
  const std::lock_guard lock(mutex_);
  active_.erase(active_.iterator_to(node));
  grant(granted);
  return granted;
}

void access_state::keep(access_node& node) noexcept {
  assert(node.granted);
  node.granted = false;
  if (node.begin == node.end)
    return;
  const std::lock_guard lock(mutex_);
  active_.erase(active_.iterator_to(node));
  kept_ = true;
}

void access_state::move(access_node& from, access_node& to) noexcept {
  assert(from.granted && !to.granted);
  to.begin = from.begin;
  to.end = from.end;
  to.kind = from.kind;
  to.granted = true;
  from.granted = false;
  if (from.begin == from.end)
    return;
  const std::lock_guard lock(mutex_);
  active_.replace_node(active_.iterator_to(from), to);
}

bool access_state::begin_or_wait(access_waiter& waiter) noexcept {
  assert(waiter.wanted != nullptr && !waiter.waits);
  if (try_begin(*waiter.wanted))
    return true;
  const std::lock_guard lock(mutex_);
  if (!is_behind(*waiter.wanted, waiters_.end()) && begin(*waiter.wanted))
    return true;
  waiters_.push_back(waiter);
  waiter.waits = true;
  return false;
}

bool access_state::stop_waiting(access_waiter& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  if (!waiter.waits)
    return false;
  waiter.waits = false;
  waiters_.erase(access_waiters::s_iterator_to(waiter));
  return true;
}

access_waiters access_state::resume() noexcept {
  access_waiters granted;
  const std::lock_guard lock(mutex_);
  grant(granted);
  return granted;
}

void access_state::grant(access_waiters& granted) noexcept {
  for (auto i = waiters_.begin(); i != waiters_.end();) {
    access_waiter& w = *i;
    assert(w.waits);
    if (is_behind(*w.wanted, i) || !begin(*w.wanted)) {
      ++i;
      continue;
    }
    w.waits = false;
    i = waiters_.erase(i);
    granted.push_back(w);
  }
}

} // namespace asio_rdma::detail
