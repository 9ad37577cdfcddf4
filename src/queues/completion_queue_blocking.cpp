// SPDX-License-Identifier: BSL-1.0
#include "queues/completion_queue_watch.hpp"

#include <algorithm>
#include <poll.h>

// The work of a thread that blocks in a function of the library, whether or not other threads run
// the context. It polls for completions itself, but only the context calls handlers.

namespace asio_rdma::detail {

bool completion_queue_impl::run_ready_internal() {
  while (harvest(1) == poll_batch)
    continue;
  batch b{*this, &completion_queue_impl::operations_done_outside};
  const std::lock_guard in_order(internal_mutex_);
  {
    const std::lock_guard lock(mutex_);
    end_round(false);
    for (auto i = ready_.begin(); i != ready_.end();) {
      operation& op = *i;
      ++i;
      if (op.internal)
        b.operations.splice(b.operations.end(), ready_, operation_list::s_iterator_to(op));
    }
    ready_changed();
  }
  run_internal(b);
  return b.done != 0;
}

// The last operation ends in the context. Otherwise the work count could reach zero and stop a
// context that no thread is running.
void completion_queue_impl::operations_done_outside(std::size_t n) noexcept {
  if (n == 0)
    return;
  std::uint64_t counts = outstanding_.load();
  do {
    if (all_background(counts - n)) {
      operations_done(n - 1);
      leave_to_runner(1);
      return;
    }
  } while (!outstanding_.compare_exchange_weak(counts, counts - n));
}

bool completion_queue_impl::has_handlers() {
  const std::lock_guard lock(mutex_);
  return !next_.empty() || std::any_of(ready_.begin(), ready_.end(),
                                       [](const operation& op) { return !op.internal; });
}

// Called by the runner; may give the role up. Returns true if the device will report further
// completions. Arms first, so that completions missed here are reported.
bool completion_queue_impl::look_and_arm(bool& worked) {
  struct role {
    completion_queue_impl& queue;
    bool given_up = false;

    ~role() {
      if (!given_up)
        queue.schedule();
    }
  } r{*this};
  do {
    if (!take_event())
      on_loss(); // perhaps no thread reads the events of the device
    const bool armed = arm();
    worked = run_ready_internal() || worked;
    const bool polls =
        options_.mode != completion_mode::event && !all_background(outstanding_.load());
    if (!armed || polls || has_handlers())
      return armed;
    r.given_up = sleep();
  } while (!worked && !r.given_up);
  return true;
}

// -1 after a loss: the channel of a removed device is readable for ever, or has an error.
int completion_queue_impl::event_descriptor() const noexcept {
  return lost_.load() ? -1 : channel_->fd;
}

// A context also stops when it runs out of work. Work that blocking functions start afterwards is
// not what `stop` was called for. A context with a queue in mode `manual` runs out of work though
// bytes wait for the peer.
void completion_queue_impl::on_leaving() noexcept {
  was_stopped_ = options_.mode != completion_mode::manual && watch_->context_scheduler.stopped() &&
                 !watch_->late.queued.load();
}

// The thread that had the role will not return to it.
completion_queue_impl::last_found completion_queue_impl::last_look() {
  last_found result;
  if (channel_ != nullptr && options_.mode != completion_mode::manual) {
    if (!read_event())
      on_loss();
    notify_requested_ = false;
    if (arm())
      result.descriptor = event_descriptor();
  }
  result.worked = run_ready_internal();
  return result;
}

void completion_queue_impl::drive(int other, waker& own) {
  // `patience` costs nothing: it limits the time until changes without notification are looked at.
  // `nap` is for the time in which another thread has the role.
  constexpr int patience = 50, nap = 1; // ms
  bool worked = run_ready_internal();
  if (worked)
    return;
  struct blocked_here {
    std::atomic<std::uint32_t>& threads;

    explicit blocked_here(std::atomic<std::uint32_t>& t) : threads(t) { ++threads; }
    ~blocked_here() { --threads; }
  } const blocked(blocked_);
  bool armed = false;
  if (options_.mode != completion_mode::manual && channel_ != nullptr &&
      (become_active(state::queued) || become_active(state::armed) || become_active(state::idle)))
    armed = look_and_arm(worked);
  if (!worked) {
    // poll(2) ignores negative descriptors
    const int channel = armed ? event_descriptor() : -1;
    pollfd descriptors[] = {
        {own.descriptor(), POLLIN, 0}, {other, POLLIN, 0}, {channel, POLLIN, 0}};
    ::poll(descriptors, 3, channel >= 0 ? patience : nap);
    if (descriptors[2].revents != 0)
      notified_.store(true);
    if (descriptors[0].revents != 0)
      own.clear();
  }
}

} // namespace asio_rdma::detail
