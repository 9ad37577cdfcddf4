// SPDX-License-Identifier: BSL-1.0
#include "device/completion_queue.hpp"

#include "engine/engine.hpp"

#include <algorithm>
#include <thread>

namespace soft {
namespace {

constexpr unsigned polls_between_yields = 1024, // some microseconds of polling
    polls_between_visits = 8,                   // a visit takes a system call,
    polls_of_a_visit = 256;                     // as long as so many polls

} // namespace

bool completion_queue::push(const ibv_wc& wc, bool solicited) {
  const std::uint64_t at = pushed_.load(std::memory_order_relaxed);
  if (overflowed_ || at - taken_.load(std::memory_order_acquire) == capacity_) [[unlikely]] {
    if (!std::exchange(overflowed_, true)) {
      ibv_async_event e{};
      e.event_type = IBV_EVENT_CQ_ERR;
      e.element.cq = base();
      device_context::of(context).events.push(e);
    }
    return false;
  }
  slots_[at % capacity_] = wc;
  // Sequentially consistent, as are the arming and the program's last poll before it waits: one of
  // the two sees the other.
  pushed_.store(at + 1);
  if (armed_.load() != none)
    notify(solicited);
  return true;
}

late_copy* completion_queue::data_of_next() noexcept {
  const std::uint64_t at = pushed_.load(std::memory_order_relaxed);
  return at - taken_.load(std::memory_order_acquire) == capacity_ ? nullptr
                                                                  : &copies_[at % capacity_];
}

void completion_queue::notify(bool solicited) {
  int armed = armed_.load();
  while (armed == any || (armed == only_solicited && solicited))
    if (armed_.compare_exchange_weak(armed, none)) {
      if (events_to != nullptr) {
        ++due_events_;
        engine::get().run_behind(raising_);
      }
      return;
    }
}

void completion_queue::raise_events() {
  for (; due_events_ != 0; --due_events_)
    events_to->events.push(this);
}

void completion_queue::drop_events() {
  engine::get().remove(raising_);
  due_events_ = 0;
}

int completion_queue::poll(int most, ibv_wc* to) noexcept {
  if (pushed_.load() == taken_.load(std::memory_order_relaxed) && !find_more()) // as most polls
    return 0;
  std::lock_guard lock(taking_);
  std::uint64_t at = taken_.load(std::memory_order_relaxed);
  const auto n = static_cast<int>(
      std::min<std::uint64_t>(static_cast<std::uint64_t>(most), pushed_.load() - at));
  for (int i = 0; i < n; ++i)
    to[i] = slots_[at++ % capacity_];
  if (copies_ != nullptr)
    for (std::uint64_t i = at - static_cast<std::uint64_t>(n); i != at; ++i)
      copies_[i % capacity_].carry_out();
  taken_.store(at, std::memory_order_release);
  return n;
}

int completion_queue::start() noexcept {
  session_.lock();
  const int found = next();
  if (found != 0) {
    session_.unlock();
    find_more(); // for the next poll
  }
  return found;
}

bool completion_queue::find_more() noexcept {
  const unsigned n = empty_polls_.load(std::memory_order_relaxed) + 1; // of several threads: about
  if (n % polls_between_visits == 0) [[unlikely]]
    return visit_or_yield(n);
  empty_polls_.store(n, std::memory_order_relaxed);
  return false;
}

// A thread that polls on and on may keep the processor from the engine, or from the peer's process,
// that it waits for. It serves the wires itself, unless it has armed the queue: then it is about to
// wait for the channel, which visits them.
bool completion_queue::visit_or_yield(unsigned polls) noexcept {
  const bool visits = armed_.load(std::memory_order_relaxed) == none && !wires().is_empty();
  if (visits)
    polls += polls_of_a_visit;
  if (polls >= polls_between_yields) {
    polls = 0;
    std::this_thread::yield();
  }
  empty_polls_.store(polls, std::memory_order_relaxed);
  if (!visits)
    return false;
  wires().visit(visited_descriptors::if_busy::nothing);
  return pushed_.load() != taken_.load(std::memory_order_relaxed);
}

// A copy, so that the slot is free at once.
int completion_queue::next() noexcept {
  if (pushed_.load() == taken_.load(std::memory_order_relaxed))
    return ENOENT;
  std::lock_guard lock(taking_);
  const std::uint64_t at = taken_.load(std::memory_order_relaxed);
  if (pushed_.load() == at)
    return ENOENT;
  read_ = slots_[at % capacity_];
  if (copies_ != nullptr)
    copies_[at % capacity_].carry_out();
  wr_id = read_.wr_id;
  status = read_.status;
  taken_.store(at + 1, std::memory_order_release);
  return 0;
}

void completion_queue::drop(std::uint32_t qp_num) {
  std::lock_guard lock(taking_);
  const std::uint64_t first = taken_.load(), last = pushed_.load();
  std::uint64_t kept =
      last; // from the newest to the oldest, so that `pushed_`, which the engine owns, stays
  for (std::uint64_t i = last; i-- != first;)
    if (slots_[i % capacity_].qp_num != qp_num) {
      slots_[--kept % capacity_] = slots_[i % capacity_];
      if (copies_ != nullptr)
        copies_[kept % capacity_] = copies_[i % capacity_];
    }
  if (copies_ != nullptr)
    for (std::uint64_t i = first; i != kept; ++i)
      copies_[i % capacity_].count = 0;
  taken_.store(kept);
}

int completion_queue::resize(unsigned capacity) {
  std::lock_guard lock(taking_);
  const std::uint64_t first = taken_.load(), last = pushed_.load();
  if (last - first > capacity)
    return EINVAL;
  std::unique_ptr<ibv_wc[]> slots(new (std::nothrow) ibv_wc[capacity]);
  std::unique_ptr<late_copy[]> copies(copies_ != nullptr ? new (std::nothrow) late_copy[capacity]
                                                         : nullptr);
  if (!slots || (copies_ != nullptr && !copies))
    return ENOMEM;
  for (std::uint64_t i = first; i != last; ++i) {
    slots[(i - first) % capacity] = slots_[i % capacity_];
    if (copies)
      copies[(i - first) % capacity] = copies_[i % capacity_];
  }
  slots_ = std::move(slots);
  copies_ = std::move(copies);
  capacity_ = capacity;
  cqe = static_cast<int>(capacity);
  taken_.store(0);
  pushed_.store(last - first);
  return 0;
}

} // namespace soft
