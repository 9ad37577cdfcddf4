// SPDX-License-Identifier: BSL-1.0
// The runner of a completion queue: its role, its turns, and the work that it counts.
#include "queues/completion_queue_watch.hpp"

#include <asio_rdma/detail/core/operation_group.hpp>

#include "core/probe.hpp"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {
namespace {

// Limits of a turn, after which the context does other work at the cost of a system call. The
// limits count batches, operations and, in polling modes, empty polls (512 take about ten
// microseconds).
constexpr unsigned batches_per_turn = 128;
constexpr std::size_t operations_per_turn = 512;
constexpr unsigned polls_per_turn = 512;

} // namespace

// The caller has counted an operation that is neither in the background nor done before this
// returns.
void completion_queue_impl::hold_work() noexcept {
  scheduler& s = watch_->context_scheduler;
  s.work_started();
  if ((outstanding_.fetch_or(holds_work) & holds_work) != 0) { // another thread was first
    s.work_finished();
  } else if (s.stopped() && !watch_->late.queued.exchange(true)) {
    watch_->late.queue = shared_from_this();
    s.post_immediate_completion(&watch_->late, false);
  }
}

// Not inlined into the path of each operation.
void completion_queue_impl::operation_starting_elsewhere() { operation_starting(); }

void completion_queue_impl::operations_done(std::size_t n) noexcept {
  if (n == 0)
    return;
  const std::uint64_t before = outstanding_.fetch_sub(n);
  assert((before & (background_one - 1)) >= n);
  std::uint64_t counts = before - n;
  while (all_background(counts) && (counts & holds_work) != 0)
    if (outstanding_.compare_exchange_weak(counts, counts & ~holds_work)) {
      watch_->context_scheduler.work_finished();
      return;
    }
}

// Operations that handlers of the pass have started take the places of those that are done.
void completion_queue_impl::end_pass(std::size_t done) noexcept {
  runner_thread_.store(nullptr, std::memory_order_relaxed);
  const std::size_t started = std::exchange(started_in_pass_, 0);
  if (started <= done)
    operations_done(done - started);
  else if ((outstanding_.fetch_add(started - done) & holds_work) == 0)
    hold_work();
}

// The count is not reduced here: it could reach zero while no thread is running the context. Or the
// context could stop before the handler of the failed operation is queued.
void completion_queue_impl::leave_to_runner(std::size_t n) noexcept {
  left_to_runner_ += n;
  queue_runner();
}

bool completion_queue_impl::become_active(state from) {
  if (!state_.compare_exchange_strong(from, state::active))
    return false;
  // Null if an event arrives after the last reference was released, while the watch is being
  // stopped.
  self_ = weak_from_this().lock();
  return self_ != nullptr;
}

bool completion_queue_impl::become_active(state from,
                                          std::shared_ptr<completion_queue_impl>& self) noexcept {
  if (!state_.compare_exchange_strong(from, state::active))
    return false;
  self_ = std::move(self);
  return true;
}

void completion_queue_impl::attend() {
  if (options_.mode != completion_mode::manual && become_active(state::idle))
    schedule();
}

// A runner that waits for an event would wait in vain.
void completion_queue_impl::attend_to_ready() {
  const state now = state_.load();
  if (now != state::idle && now != state::armed) [[likely]]
    return; // the runner looks again before it gives up its role
  if (options_.mode != completion_mode::manual &&
      (become_active(state::idle) || become_active(state::armed)))
    schedule();
}

// Gives the role to a queued runner.
void completion_queue_impl::schedule() {
  assert(state_.load() == state::active);
  const auto self = std::move(self_);
  state_.store(state::queued);
  queue_runner();
}

// Queues the runner behind the context's other work. Not as a continuation: while a handler blocks,
// that would stay with this thread. If this thread left the context, no other thread would be woken
// for it.
void completion_queue_impl::queue_runner() {
  if (!reserve_turns(1))
    return;
  watch::runner& turn = watch_->runners.front();
  turn.queue = shared_from_this();
  turn.of_group = 0;
  watch_->context_scheduler.post_immediate_completion(&turn, false);
}

// Returns false if turns are queued: those come first.
bool completion_queue_impl::reserve_turns(std::size_t n) noexcept {
  std::size_t none = 0;
  return turns_queued_.load() == 0 && turns_queued_.compare_exchange_strong(none, n);
}

bool completion_queue_impl::on_readable() {
  notified_.store(true);
  return become_active(state::armed);
}

// One request for notification gives one event (ibv_req_notify_cq(3)), and the channel has only
// this queue, so one read empties the channel. Returns false if the device was removed; the context
// then has an asynchronous event of the device, too.
bool completion_queue_impl::take_event() {
  if (!notified_.load(std::memory_order_relaxed) || !notified_.exchange(false))
    return true;
  notify_requested_ = false;
  return read_event();
}

std::size_t completion_queue_impl::harvest(unsigned polls) noexcept {
  std::unique_lock lock(mutex_);
  const int found = take_completions(polls);
  lock.unlock();
  return found_or_failed(found);
}

std::size_t completion_queue_impl::found_or_failed(int found) noexcept {
  if (found < 0) [[unlikely]] {
    on_loss();
    return 0;
  }
  return static_cast<std::size_t>(found);
}

// First pass: `wr_id` is the address of the operation. Consecutive completions of the same queue
// are processed under one lock.
int completion_queue_impl::take_completions(unsigned polls) noexcept {
  assert(mutex_.is_locked());
  if (has_ready_.load(std::memory_order_relaxed) || has_postponed_.load(std::memory_order_relaxed))
    polls = 1; // there is work already
  ibv_wc completions[poll_batch];
  int n = 0;
  do {
    n = ibv_poll_cq(cq_, poll_batch, completions);
    polls_.add();
  } while (n == 0 && --polls != 0);
  if (n <= 0)
    return n;
  completions_.add(static_cast<std::uint64_t>(n));
  const int found = n;
  if (!abandoned_.empty()) [[unlikely]]
    n = drop_abandoned(completions, n);
  const bool in_pass = is_in_pass();
  biased_mutex* owner = nullptr;
  for (int i = 0; i < n; ++i) {
    auto& op = *reinterpret_cast<operation*>(completions[i].wr_id);
    ASIO_RDMA_PROBE(completion, completions[i].wr_id, completions[i].qp_num,
                    static_cast<int>(completions[i].status), completions[i].vendor_err);
    work_queue& queue = *op.queue.load(std::memory_order_acquire);
    if (owner != &queue.owner_mutex()) {
      if (owner != nullptr)
        owner->unlock();
      owner = &queue.owner_mutex();
      in_pass ? owner->lock_as_owner() : owner->lock();
    }
    if (completions[i].status != IBV_WC_SUCCESS || !op.usual || !queue.complete_oldest(op, ready_))
      queue.on_completion(op, completions[i], ready_);
  }
  if (owner != nullptr)
    owner->unlock();
  ready_changed();
  return found;
}

// Internal operations are disposed of first, and in order whichever threads take them, so none
// waits behind a handler that blocks.
void completion_queue_impl::run_internal(batch& b) {
  assert(internal_mutex_.is_locked());
  for (auto i = b.operations.begin(); i != b.operations.end();) {
    operation& op = *i;
    ++i;
    if (!op.internal)
      continue;
    b.operations.erase(operation_list::s_iterator_to(op));
    ++b.done;
    ++b.internal;
    op.dispose(disposal::complete);
  }
}

completion_queue_impl::batch::~batch() {
  if (!operations.empty()) {
    queue.put_back(operations);
    queue.attend_to_ready();
  }
  (queue.*count)(done);
}

constinit thread_local completion_queue_impl::batch* completion_queue_impl::collecting_batch =
    nullptr;

// Operations of other threads may be in the list of ready ones. Those come first.
bool completion_queue_impl::collect(operation_list& done) noexcept {
  batch* const b = collecting_batch;
  if (b == nullptr || &b->queue != this || has_ready_.load(std::memory_order_acquire) ||
      !std::all_of(done.begin(), done.end(),
                   [b](const operation& op) { return b->may_collect(op); }))
    return false;
  b->operations.splice(b->operations.end(), done);
  return true;
}

// Disposes of internal operations; the others are in the batch afterwards. If `polls` is not 0, a
// pass begins: completions are taken first, under the same lock. Returns their number, or less
// than 0 after a failure.
int completion_queue_impl::take_ready(batch& b, unsigned polls) {
  std::unique_lock in_order(internal_mutex_, std::defer_lock);
  if (has_internal_.load()) [[unlikely]] {
    lock(internal_mutex_);
    in_order = std::unique_lock(internal_mutex_, std::adopt_lock);
  }
  const collecting own(b);
  int found = 0;
  std::size_t before = 0;
  do {
    {
      lock(mutex_);
      const std::lock_guard unlocks(mutex_, std::adopt_lock);
      if (polls != 0) {
        begin_pass();
        found = take_completions(std::exchange(polls, 0));
      }
      if (in_order.owns_lock() || !has_internal_.load()) [[likely]]
        b.operations.splice(b.operations.end(), ready_);
      ready_changed();
    }
    before = b.done;
    if (in_order.owns_lock())
      run_internal(b);
    // also handlers of operations that these completed run before arming
  } while (b.done != before && has_ready_.load(std::memory_order_relaxed));
  return found;
}

// Second pass: handlers may call any function, so no mutex is locked. Operations that ended without
// the device, at a close, may be thousands, so a stopped context is noticed every few handlers. The
// other operations then wait for the context to be run again. Operations that handlers have
// completed without the device, such as writes to a stream, need no pass of their own, up to a
// number.
template <disposal How>
completion_queue_impl::pass_counts completion_queue_impl::run_pass(unsigned polls) {
  constexpr bool here = How == disposal::complete_here;
  batch b{*this, here ? &completion_queue_impl::end_pass : &completion_queue_impl::operations_done};
  if (here)
    runner_thread_.store(thread_mark(), std::memory_order_relaxed);
  pass_counts result;
  result.found = found_or_failed(take_ready(b, polls));
  std::optional<collecting> own;
  if (here)
    own.emplace(b);
  while (!b.operations.empty()) {
    const std::size_t pause = b.done + poll_batch;
    do {
      operation& op = b.operations.front();
      b.operations.pop_front();
      ++b.done;
      if constexpr (How == disposal::complete)
        b.internal += op.internal ? 1 : 0;
      op.dispose(How);
    } while (!b.operations.empty() && b.done != pause);
    if (!here)
      continue;
    result.stopped = watch_->context_scheduler.stopped();
    if (result.stopped || b.done >= operations_per_pass)
      break;
    if (b.operations.empty() && has_ready_.load(std::memory_order_relaxed))
      take_ready(b, 0);
  }
  result.all = b.done;
  result.internal = b.internal;
  return result;
}

void completion_queue_impl::put_back(operation_list& operations) noexcept {
  const std::lock_guard lock(mutex_);
  ready_.splice(ready_.begin(), operations);
  ready_changed();
}

// Counts the user's operations. Internal operations may have completed operations of the user, so
// the loop continues after internal operations.
std::size_t completion_queue_impl::poll() {
  if (options_.mode != completion_mode::manual)
    return 0;
  const auto self = shared_from_this(); // a handler may drop the last reference
  std::size_t ran = 0;
  for (bool more = true; more;) {
    const pass_counts pass = run_pass<disposal::complete>(1);
    ran += pass.all - pass.internal;
    more = pass.found == poll_batch || pass.internal != 0 || has_postponed_.load();
  }
  return ran;
}

void completion_queue_impl::run(std::uint64_t of_group) {
  assert(state_.load() == state::active);
  // Keeps the queue alive while handlers destroy all other references. An unfinished turn continues
  // behind the context's other work, also if a handler throws.
  struct turn {
    completion_queue_impl& queue;
    std::shared_ptr<completion_queue_impl> self;
    bool over = false;

    ~turn() {
      if (over)
        return;
      queue.self_ = std::move(self);
      queue.schedule();
    }
  } t{*this, std::move(self_)};

  const bool polls = options_.mode != completion_mode::event;
  std::size_t operations = 0;
  for (unsigned batches = 0; batches < batches_per_turn && operations < operations_per_turn;) {
    take_event();
    if (blocked_.load(std::memory_order_relaxed) != 0)
      arm(); // completions during handlers wake the blocked threads
    const unsigned most_polls = polls && turns_queued_.load() == 0 ? polls_per_turn : 1;
    const pass_counts pass = watch_->places.empty() ? run_pass<disposal::complete_here>(most_polls)
                                                    : hand_out_pass(most_polls, of_group, t.over);
    if (t.over)
      return;
    if (pass.all != 0) {
      ++batches;
      operations += pass.all;
      spin_until_.reset();
    }
    const bool postponed = has_postponed_.load();
    if (pass.all == 0 && postponed)
      continue;
    if (pass.all == 0 && turns_queued_.load() != 0)
      return; // those look again
    const std::uint64_t counts = outstanding_.load();
    if (nothing_to_look_for(counts)) {
      t.over = rest();
    } else if (pass.all != 0 && !pass.stopped &&
               (polls || pass.found == poll_batch || postponed ||
                has_ready_.load(std::memory_order_relaxed))) {
      continue;
    } else if (pass.stopped || (!all_background(counts) &&
                                (options_.mode == completion_mode::busy || !spun_enough()))) {
      return;
    } else if (!arm()) {
      return;
    } else {
      t.over = sleep();
    }
    if (t.over)
      return;
  }
}

bool completion_queue_impl::spun_enough() {
  if (options_.mode == completion_mode::event)
    return true;
  const auto now = std::chrono::steady_clock::now();
  if (!spin_until_)
    spin_until_ = now + options_.spin;
  return now >= *spin_until_;
}

// If the completion queue cannot be armed, poll it: a failed device may still flush outstanding
// work requests.
bool completion_queue_impl::arm() {
  if (!notify_requested_) {
    arms_.add();
    notify_requested_ = ibv_req_notify_cq(cq_, 0) == 0;
  }
  return notify_requested_;
}

// Polls once more after arming: completions before the request was accepted raise no event. Returns
// true if the role has been given up.
bool completion_queue_impl::sleep() {
  assert(state_.load() == state::active && notify_requested_);
  spin_until_.reset();
  watch_->channel.resume();
  self_.reset();
  state_.store(state::armed);
  int found = 0;
  {
    const std::lock_guard lock(mutex_);
    end_quiet_round();
    found = take_completions(1);
  }
  found_or_failed(found);
  if (!any_ready() && !notified_.load())
    return true;
  // On failure, the event has made another thread the runner.
  return !become_active(state::armed);
}

bool completion_queue_impl::any_ready() {
  const std::lock_guard lock(mutex_);
  return has_ready_.load() || has_postponed_.load();
}

// Background operations are no reason to poll, so without a channel the queue rests.
bool completion_queue_impl::nothing_to_look_for(std::uint64_t counts) const noexcept {
  return (counts & ~holds_work) == 0 || (channel_ == nullptr && all_background(counts));
}

// Returns true if the role has been given up.
bool completion_queue_impl::rest() {
  assert(state_.load() == state::active);
  self_.reset();
  state_.store(state::idle);
  return (nothing_to_look_for(outstanding_.load()) && !has_ready_.load()) ||
         !become_active(state::idle);
}

} // namespace asio_rdma::detail
