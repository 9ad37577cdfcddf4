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
/// other reasons. To be set by who counts as work at that time.
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
    when_ = when;
    timer_.expires_at(when);
    timer_.async_wait([&s = scheduler_, f = std::move(f)](error_code ec) {
      s.work_started(); // which the context takes off now
      if (!ec)
        f();
    });
    scheduler_.work_finished();
  }
  /// To be called by `f`.
  void ran_out() noexcept { when_ = clock::time_point::max(); }

private:
  scheduler& scheduler_;
  asio::basic_waitable_timer<clock, asio::wait_traits<clock>, inline_executor> timer_;
  clock::time_point when_ = clock::time_point::max();
};

} // namespace asio_rdma::detail
