// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "descriptor_watch.hpp"
#include "inline_executor.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

#include <chrono>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// A timer that does not keep an idle context from its end: it runs out while the context runs for
/// other reasons.
class background_timer {
public:
  using clock = std::chrono::steady_clock;

  explicit background_timer(asio::execution_context& context)
      : scheduler_(asio::use_service<scheduler>(context)), timer_(inline_executor{&context}) {}

  /// Calls `f` once at `when`, if that is before it would otherwise be called. `f` may set it
  /// again, and must not count on this still to be there.
  template <class Function>
  void set(clock::time_point when, Function f) {
    if (when >= when_)
      return;
    auto taken_off = std::make_unique<uncounting>(scheduler_);
    ran_out(); // whatever fails from here on, the wait before is over
    timer_.expires_at(when);
    timer_.async_wait([&s = scheduler_, f = std::move(f)](error_code ec) {
      s.work_started(); // which the context takes off now
      if (!ec)
        f();
    });
    when_ = when;
    scheduler_.post_immediate_completion(taken_off.release(), false);
  }
  /// To be called by `f`.
  void ran_out() noexcept { when_ = clock::time_point::max(); }

private:
  // Takes the timer off the context's work, but in the context: by the end of the last work it
  // would stop there, though it may not be running.
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
