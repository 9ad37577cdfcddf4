// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/descriptor_watch.hpp"

#include <cassert>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {

/// Completes the ready operations of a service on its context, one operation in each turn of the
/// context. Queuing the runner allocates nothing and needs no executor, which might allocate or
/// throw. `List` is an intrusive list.
template <class List>
class ready_runner : private scheduled_operation {
public:
  using reference = typename List::reference;

  /// `mutex` guards `ready`.
  ready_runner(asio::execution_context& context, std::mutex& mutex, List& ready)
      : scheduled_operation(&ready_runner::execute),
        context_scheduler(asio::use_service<scheduler>(context)),
        mutex_(mutex),
        ready_(ready) {}
  ready_runner(const ready_runner&) = delete;

  /// Queues the runner in the context, unless it is queued already. Called with the mutex locked:
  /// once the mutex is unlocked, the context may be destroyed.
  void queue() noexcept {
    if (!std::exchange(queued_, true))
      context_scheduler.post_immediate_completion(this, false);
  }

  scheduler& context_scheduler;

protected:
  ~ready_runner() = default;

private:
  /// Completes an operation that has left the list. Called with the mutex unlocked.
  virtual void complete(reference op) = 0;

  static void execute(void* context, scheduled_operation* base, const error_code&, std::size_t) {
    if (context != nullptr)
      static_cast<ready_runner*>(base)->run();
  }

  // The runner is queued again before the handler is called: the handler may throw, or block until
  // another handler has run.
  void run() {
    std::unique_lock lock(mutex_);
    assert(queued_);
    queued_ = false;
    if (ready_.empty())
      return;
    reference op = ready_.front();
    ready_.pop_front();
    if (!ready_.empty())
      queue();
    lock.unlock();
    complete(op);
  }

  std::mutex& mutex_;
  List& ready_;
  bool queued_ = false; // under the mutex
};

} // namespace asio_rdma::detail
