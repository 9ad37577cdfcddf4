// SPDX-License-Identifier: BSL-1.0
// The handlers of a pass if several threads may run the context.
#include "queues/completion_queue_watch.hpp"

#include <asio_rdma/detail/core/operation_group.hpp>

#include <algorithm>

namespace asio_rdma::detail {

// The executor of a strand calls no handler here, and keeps the order of the calls. Two threads
// that were handed operations of one strand could turn it round.
void completion_queue_impl::post_to_strands(batch& b, operation_list::iterator next) {
  while (next != b.operations.end()) {
    if (next->executor == nullptr || !next->executor->is_strand()) {
      ++next;
      continue;
    }
    operation_group group(b.operations, next, b.done);
    group.post();
  }
}

// The second pass if several threads may run the context. The first handler is called here, as
// Asio's reactor does. Before that, the other operations are put into the context's queue, and the
// role behind them, for idle threads. While turns of the runner are queued, the other operations
// wait for those: behind them they would begin after the handlers of later completions.
completion_queue_impl::pass_counts completion_queue_impl::hand_out_pass(unsigned polls,
                                                                        bool& role_given_up) {
  batch b{*this, &completion_queue_impl::operations_done};
  pass_counts result;
  result.found = found_or_failed(take_ready(b, polls));
  result.all = b.done;
  if (b.operations.empty()) {
    if (b.done == 0)
      found_nothing_.store(true, std::memory_order_relaxed);
    return result;
  }
  spin_until_.reset();
  const auto bound = std::find_if(b.operations.begin(), b.operations.end(),
                                  [](const operation& op) { return op.executor != nullptr; });
  const bool any_bound = bound != b.operations.end();
  if (any_bound) [[unlikely]]
    post_to_strands(b, bound);
  role_given_up = true;
  if (b.operations.empty()) {
    schedule(); // behind the strands
    return result;
  }
  operation& first = b.operations.front();
  b.operations.pop_front();
  ++b.done;
  const bool alone = b.operations.empty() && !any_bound;
  b.polls = polls_.value();
  if (!queue_turns(b.operations)) {
    put_back(b.operations);
    schedule();
  }
  if (alone)
    run_steps(b, first);
  else
    first.dispose(disposal::complete_here);
  return result;
}

// Gives the role to turns in the context's queue, behind the operations. Operations without a place
// wait for the first turn. As long as each turn finds a handler, there are twice as many together
// the next time: the context looks at its reactor before the first of them only.
bool completion_queue_impl::queue_turns(operation_list& operations) {
  const bool each_found = !found_nothing_.load(std::memory_order_relaxed);
  const std::size_t n = each_found ? std::min(2 * turns_together_, watch_->runners.size()) : 1;
  if (!reserve_turns(n))
    return false;
  turns_together_ = n;
  found_nothing_.store(false, std::memory_order_relaxed);
  asio::detail::op_queue<scheduled_operation> queued;
  std::size_t handed = 0;
  for (watch::handed_out& place : watch_->places) {
    if (operations.empty())
      break;
    if (place.op.load(std::memory_order_acquire) != nullptr)
      continue;
    place.queue = shared_from_this();
    place.op.store(&operations.front(), std::memory_order_release);
    operations.pop_front();
    queued.push(&place);
    ++handed;
  }
  put_back(operations);
  for (std::size_t i = 0; i < n; ++i) {
    watch_->runners[i].queue = shared_from_this();
    queued.push(&watch_->runners[i]);
  }
  self_.reset(); // set if the role was given up and taken again in this turn
  state_.store(state::queued);
  watch_->context_scheduler.post_immediate_completions(handed + n, queued, false);
  return true;
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
