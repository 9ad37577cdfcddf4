// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/random_delay.hpp>

#include "core/descriptor_watch.hpp"
#include "core/inline_executor.hpp"
#include "queues/completion_service.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// A timer for polling a lock, with random intervals that double. Not thread-safe.
class alock_timer {
public:
  explicit alock_timer(asio::execution_context& context)
      : scheduler_(asio::use_service<scheduler>(context)), timer_(inline_executor{&context}) {}

  /// Begins anew with the shortest interval.
  void begin() noexcept { times_ = 0; }
  /// Calls `f` on a thread of the context within 2^longest microseconds. Replaces the preceding
  /// call unless that call has begun. If polling may be in vain and has been for long, the calls
  /// become rare and do not count as work of the context. Throws `std::bad_alloc`.
  template <class Function>
  void set(unsigned longest, bool maybe_in_vain, Function f) {
    assert(longest < 32);
    ++times_;
    const bool background = maybe_in_vain && in_vain();
    const std::uint32_t limit = std::uint32_t(1)
                                << (background ? rare : std::min(times_ + 1, longest));
    timer_.expires_after(delay_(limit));
    timer_.async_wait([&s = scheduler_, background, f = std::move(f)](const error_code& ec) {
      if (background)
        s.work_started(); // balances the decrement by the context
      if (!ec)
        f();
    });
    if (background)
      scheduler_.work_finished();
  }

  /// Cancels the pending call, unless it has begun.
  void stop() { timer_.cancel(); }
  /// Whether `set` was called often since `begin`.
  bool in_vain() const noexcept { return times_ > patience; }

private:
  using clock = std::chrono::steady_clock;
  static constexpr std::uint32_t patience = 2000; // calls, half a millisecond each
  static constexpr unsigned rare = 20;

  scheduler& scheduler_;
  asio::basic_waitable_timer<clock, asio::wait_traits<clock>, inline_executor> timer_;
  random_delay delay_;
  std::uint32_t times_ = 0;
};

/// A replacement for a timer when there is no memory for one: looks at a party's lock again in the
/// next turn of the context. Allocates nothing.
template <class Party>
class alock_next_turn final : public operation {
public:
  explicit alock_next_turn(Party& p) noexcept : operation(&alock_next_turn::come), party_(p) {}

  /// Calls `party.look_again()` once, and keeps `keep` until then. Called with the party's lock
  /// held.
  void begin(completion_service& service, std::shared_ptr<void> keep) noexcept {
    assert(keep != nullptr);
    if (keep_)
      return;
    keep_ = std::move(keep);
    service.operation_starting();
    operation_list done;
    done.push_back(*this);
    service.complete(done);
  }
  /// Whether `look_again` will be called. Called with the party's lock held.
  bool is_queued() const noexcept { return keep_ != nullptr; }
  /// Called by `look_again` with the lock held. The caller keeps the result until it unlocks.
  std::shared_ptr<void> end() noexcept { return std::move(keep_); }

private:
  static void come(operation* base, disposal) {
    static_cast<alock_next_turn*>(base)->party_.look_again();
  }

  Party& party_;
  std::shared_ptr<void> keep_; // set while the operation is queued
};

} // namespace asio_rdma::detail
