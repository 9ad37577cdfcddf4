// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/completion_queue_impl.hpp>

#include <algorithm>
#include <iterator>
#include <poll.h>

// What a thread does that blocks in a function of the library, whether or not others run the
// context: it looks for completions itself, but handlers are the context's to run.

namespace asio_rdma::detail {

bool completion_queue_impl::run_ready_internal() {
  harvest(1);
  operation_list taken;
  std::size_t ran = 0;
  {
    const std::lock_guard in_order(internal_mutex_);
    {
      const std::lock_guard lock(mutex_);
      for (auto i = ready_.begin(); i != ready_.end();) {
        operation& op = *i;
        ++i;
        if (op.internal)
          taken.splice(taken.end(), ready_, operation_list::s_iterator_to(op));
      }
    }
    ran = run_internal(taken);
  }
  operations_done(ran);
  return ran != 0;
}

bool completion_queue_impl::has_handlers() {
  const std::lock_guard lock(mutex_);
  return std::any_of(ready_.begin(), ready_.end(),
                     [](const operation& op) { return !op.internal; });
}

// For who has the role, and gives it up: true if the device will tell of what completes. Armed
// first, so that it does of what is not seen here.
bool completion_queue_impl::look_and_arm(bool was_queued, bool& worked) {
  do {
    take_event();
    const bool armed = arm();
    worked = run_ready_internal() || worked;
    if (!armed || has_handlers()) {
      schedule(false);
      return armed;
    }
  } while (!sleep());
  // A runner that came meanwhile found the role taken, and may have more to do than to wait.
  if (was_queued && !runner_queued_.load() && become_active(state::armed))
    schedule(false);
  return true;
}

void completion_queue_impl::drive(int other, waker& own) {
  // The one costs nothing; what nobody tells of is looked at in between. The other is for the time
  // in which another thread has the role.
  constexpr int patience = 50, nap = 1; // ms
  bool worked = run_ready_internal();
  if (worked)
    return;
  bool armed = false;
  if (options_.mode != completion_mode::manual && channel_ != nullptr) {
    const bool was_queued = become_active(state::queued);
    if (was_queued || become_active(state::armed) || become_active(state::idle))
      armed = look_and_arm(was_queued, worked);
  }
  if (worked)
    return;
  // poll(2) passes over what is negative.
  pollfd descriptors[] = {
      {armed ? channel_->fd : -1, POLLIN, 0}, {other, POLLIN, 0}, {own.descriptor(), POLLIN, 0}};
  ::poll(descriptors, std::size(descriptors), armed ? patience : nap);
  if (descriptors[0].revents != 0)
    notified_.store(true);
  if (descriptors[2].revents != 0)
    own.clear();
}

} // namespace asio_rdma::detail
