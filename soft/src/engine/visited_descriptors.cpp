// SPDX-License-Identifier: BSL-1.0
#include "engine/visited_descriptors.hpp"

#include <sys/epoll.h>

namespace soft {
namespace {

constexpr int most_events = 64; // of one turn

} // namespace

visited_descriptors::~visited_descriptors() {
  if (fd() < 0)
    return;
  const engine::lock_guard lock(engine::get());
  engine::get().remove(*this);
  engine::get().forget(fd());
}

descriptor_table* visited_descriptors::table() {
  if (table_.fd() >= 0)
    return is_here() ? &table_ : nullptr;
  if (table_.open() != 0 || engine::get().watch(table_.fd(), EPOLLIN, *this) != 0)
    return nullptr;
  engine_watches_ = true;
  engine_ = &engine::get();
  return &table_;
}

void visited_descriptors::leave() {
  if (fd() < 0 || !table_.is_empty())
    return;
  engine::get().remove(*this);
  engine::get().forget(fd());
  table_.close();
}

void visited_descriptors::visit(if_busy other) noexcept {
  if (is_empty())
    return;
  const without_cancellation at_system_calls;
  const auto here = [this] {
    note_visit();
    serve();
  };
  if (other == if_busy::wait)
    engine::get().wait_and_run(here);
  else if (!engine::get().try_to_run(here) && other == if_busy::schedule)
    leave_rest();
}

void visited_descriptors::leave_rest() noexcept {
  has_rest_ = true;
  engine::get().schedule(*this);
}

// A program that comes once in a while leaves the descriptors to the engine: each change of hands
// takes system calls.
void visited_descriptors::note_visit() {
  const auto now = clock::now();
  if (engine_watches_ && now - last_visit_ < patience) {
    engine_watches_ = false;
    engine::get().change(table_.fd(), 0);
    engine::get().schedule_at(*this, now + patience);
  }
  last_visit_ = now;
}

void visited_descriptors::serve() {
  if (descriptor* const d = table_.only_reader()) // it finds out by itself, without a system call
    return d->ready(EPOLLIN);
  epoll_event events[most_events];
  const int n = epoll_wait(table_.fd(), events, most_events, 0);
  for (int i = 0; i < n; ++i)
    table_.report(events[i]);
  if (n == most_events)
    leave_rest();
}

// On the engine's thread: something was left, or the patience may be over. If the program still
// comes, it gets its messages itself.
void visited_descriptors::run() {
  if (table_.fd() < 0) // closed since another thread has left the rest
    return;
  if (has_rest_.exchange(false))
    serve();
  if (engine_watches_)
    return;
  if (clock::now() - last_visit_ < patience)
    return engine::get().schedule_at(*this, last_visit_ + patience);
  engine_watches_ = true;
  engine::get().change(table_.fd(), EPOLLIN);
}

void visited_descriptors::ready(std::uint32_t) { serve(); }

} // namespace soft
