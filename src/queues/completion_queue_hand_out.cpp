// SPDX-License-Identifier: BSL-1.0
// The handlers of a pass if several threads may run the context.
#include "queues/completion_queue_watch.hpp"

#include <asio_rdma/detail/core/operation_group.hpp>

#include <algorithm>
#include <cassert>
#include <mutex>

namespace asio_rdma::detail {

// The executor of a strand calls no handler here, and keeps the order of the calls. Two threads
// that were handed operations of one strand could turn it round. Returns whether any operation has
// an executor of its own.
bool completion_queue_impl::post_to_strands(batch& b) {
  auto next = std::find_if(b.operations.begin(), b.operations.end(),
                           [](const operation& op) { return op.executor != nullptr; });
  if (next == b.operations.end()) [[likely]]
    return false;
  while (next != b.operations.end()) {
    if (next->executor == nullptr || !next->executor->is_strand()) {
      ++next;
      continue;
    }
    operation_group group(b.operations, next, b.done);
    group.post();
  }
  return true;
}

// The second pass if several threads may run the context. The first handler is called here, as
// Asio's reactor does. Before that, the other operations are put into the context's queue, and the
// role behind them, for idle threads. While turns of the runner are queued, the other operations
// wait in `next_` for those: behind them they would begin after the handlers of later completions.
// So would they if a thread had been delayed since it took its turn from the context, and another
// group is queued: that turn begins none.
completion_queue_impl::pass_counts
completion_queue_impl::hand_out_pass(unsigned polls, std::uint64_t of_group, bool& role_given_up) {
  pass_counts result;
  if (of_group != last_group_ && turns_queued_.load() != 0) [[unlikely]] {
    role_given_up = true;
    schedule();
    return result;
  }
  batch b{*this, &completion_queue_impl::operations_done};
  result.found = found_or_failed(take_ready(b, polls));
  result.all = b.done;
  const bool any_bound = post_to_strands(b);
  operation* first = nullptr;
  group next;
  bool alone = !any_bound, is_free = false;
  if (!b.operations.empty() || has_ready_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    next_.splice(next_.end(), b.operations);
    if (!next_.empty()) {
      first = &next_.front();
      next_.pop_front();
      alone = alone && next_.empty();
      is_free = reserve_turns(1);
      if (is_free)
        hand_out(next);
    }
    ready_changed();
  }
  if (first == nullptr && !any_bound) {
    if (b.done == 0)
      found_nothing_.store(true, std::memory_order_relaxed);
    return result;
  }
  spin_until_.reset();
  role_given_up = true;
  if (first == nullptr) {
    schedule(); // behind the strands
    return result;
  }
  ++b.done;
  b.polls = polls_.value();
  if (is_free)
    queue_group(next);
  else
    schedule();
  if (alone)
    run_steps(b, *first);
  else
    first->dispose(disposal::complete_here);
  return result;
}

// Operations without a place stay in `next_`.
void completion_queue_impl::hand_out(group& next) {
  assert(mutex_.is_locked());
  for (watch::handed_out& place : watch_->places) {
    if (next_.empty())
      break;
    if (place.op.load(std::memory_order_acquire) != nullptr)
      continue;
    place.queue = shared_from_this();
    place.op.store(&next_.front(), std::memory_order_release);
    next_.pop_front();
    next.queued.push(&place);
    ++next.handed_out;
  }
}

// Gives the role to turns in the context's queue, behind the operations that are handed out. One
// turn is reserved. As long as each turn finds a handler, a group has twice as many turns and
// operations as the last one: the context looks at its reactor before the first of them only.
void completion_queue_impl::queue_group(group& next) {
  const std::size_t most = watch_->runners.size();
  const bool each_found = !found_nothing_.load(std::memory_order_relaxed);
  const std::size_t wanted = each_found ? std::min(2 * in_last_group_, most) : 1;
  const std::size_t turns = wanted > next.handed_out ? wanted - next.handed_out : 1;
  in_last_group_ = std::min(turns + next.handed_out, most);
  found_nothing_.store(false, std::memory_order_relaxed);
  ++last_group_;
  for (std::size_t i = 0; i != turns; ++i) {
    watch_->runners[i].queue = shared_from_this();
    watch_->runners[i].of_group = last_group_;
    next.queued.push(&watch_->runners[i]);
  }
  turns_queued_.store(turns);
  self_.reset(); // set if the role was given up and taken again in this turn
  state_.store(state::queued);
  watch_->context_scheduler.post_immediate_completions(next.handed_out + turns, next.queued, false);
}

// Calls a handler. If it is that of a step of a loop of Asio's, and the next step completes within
// its own start, that follows at once: a turn of the context costs more. At most the last of these
// handlers is the user's. Operations that complete meanwhile are left to the role.
void completion_queue_impl::run_steps(batch& b, operation& first) {
  b.context_run = this_run_of_a_context();
  const collecting steps(b);
  first.dispose(disposal::complete_here);
  while (!b.operations.empty() && b.done < operations_per_pass &&
         !watch_->context_scheduler.stopped()) {
    operation& op = b.operations.front();
    b.operations.pop_front();
    ++b.done;
    b.step = nullptr;
    op.dispose(disposal::complete_here);
  }
}

// A user's handler may run the context itself, and steps in it: it must not wait for what is
// collected.
void completion_queue_impl::note_step(const operation& op) noexcept {
  batch* const b = collecting_batch;
  if (b != nullptr && &b->queue == this && b->context_run != nullptr &&
      b->context_run == this_run_of_a_context() && op.executor == nullptr)
    b->step = &op;
}

// If a thread has polled since the role was given up, what it has found comes first.
bool completion_queue_impl::batch::may_collect(const operation& op) const noexcept {
  return !op.internal && (context_run == nullptr || (&op == step && polls == queue.polls_.value()));
}

} // namespace asio_rdma::detail
