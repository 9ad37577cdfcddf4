// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/descriptor_watch.hpp"
#include "core/inline_executor.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

#include <chrono>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// A timer that does not count as work of the context: it expires while other work keeps the
/// context running.
class background_timer {
public:
  using clock = std::chrono::steady_clock;

  explicit background_timer(asio::execution_context& context)
      : scheduler_(asio::use_service<scheduler>(context)), timer_(inline_executor{&context}) {}

  /// Calls `f` once at `when`, if no earlier call is pending. `f` may set the timer again, and must
  /// not assume that this object still exists.
  template <class Function>
  void set(clock::time_point when, Function f) {
    if (when >= when_)
      return;
    auto taken_off = std::make_unique<uncounting>(scheduler_);
    ran_out(); // even if a later step fails, the earlier wait is over
    timer_.expires_at(when);
    timer_.async_wait([&s = scheduler_, f = std::move(f)](error_code ec) {
      s.work_started(); // balances the decrement by the context
      if (!ec)
        f();
    });
    when_ = when;
    scheduler_.post_immediate_completion(taken_off.release(), false);
  }
  /// Called by `f`.
  void ran_out() noexcept { when_ = clock::time_point::max(); }

private:
  // Takes the timer off the work count, inside the context: elsewhere the count could reach zero
  // and stop a context that no thread is running.
  struct uncounting final : scheduled_operation {
    explicit uncounting(scheduler& s) noexcept
        : scheduled_operation(&uncounting::execute), context_scheduler(s) {}

    static void execute(void* owner, scheduled_operation* base, const error_code&, std::size_t) {
      const std::unique_ptr<uncounting> self(static_cast<uncounting*>(base));
      if (owner != nullptr)
        self->context_scheduler.work_finished();
    }

    scheduler& context_scheduler;
  };

  scheduler& scheduler_;
  asio::basic_waitable_timer<clock, asio::wait_traits<clock>, inline_executor> timer_;
  clock::time_point when_ = clock::time_point::max();
};

} // namespace asio_rdma::detail
