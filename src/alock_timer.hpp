// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/completion_service.hpp>

#include "descriptor_watch.hpp"
#include "inline_executor.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>

namespace asio_rdma::detail {

/// When to look at a lock again: after a random time that doubles. Not safe from several threads at
/// a time.
class alock_timer {
public:
  explicit alock_timer(asio::execution_context& context)
      : scheduler_(asio::use_service<scheduler>(context)),
        timer_(inline_executor{&context}),
        random_(static_cast<std::minstd_rand::result_type>(
            reinterpret_cast<std::uintptr_t>(this) >> 4 ^
            static_cast<std::uintptr_t>(clock::now().time_since_epoch().count()))) {}

  /// The next time is the first one again.
  void begin() noexcept { times_ = 0; }
  /// Calls `f` on a thread of the context, in place of what was set before, unless that is being
  /// called; within 2^longest microseconds. If that may be in vain, and has been so for long, it is
  /// rare and does not keep the context from its end. Throws if there is no memory for it.
  template <class Function>
  void set(unsigned longest, bool maybe_in_vain, Function f) {
    ++times_;
    const bool background = maybe_in_vain && in_vain();
    const std::uint32_t limit = std::uint32_t(1)
                                << (background ? rare : std::min(times_ + 1, longest));
    timer_.expires_after(std::chrono::microseconds(random_() % limit));
    timer_.async_wait([&s = scheduler_, background, f = std::move(f)](const error_code& ec) {
      if (background)
        s.work_started(); // which the context takes off now
      if (!ec)
        f();
    });
    if (background)
      scheduler_.work_finished();
  }

  /// What was set is not called, unless it is being called.
  void stop() { timer_.cancel(); }
  /// Whether it was set often since the first time.
  bool in_vain() const noexcept { return times_ > patience; }

private:
  using clock = std::chrono::steady_clock;
  static constexpr std::uint32_t patience = 2000; // times, of half a millisecond
  static constexpr unsigned rare = 20;

  scheduler& scheduler_;
  asio::basic_waitable_timer<clock, asio::wait_traits<clock>, inline_executor> timer_;
  std::minstd_rand random_;
  std::uint32_t times_ = 0;
};

/// In place of a timer, or of anything else for which there is no memory: looks at a party's lock
/// again in the next turn of the context, for which no memory is needed.
template <class Party>
class alock_next_turn final : public operation {
public:
  explicit alock_next_turn(Party& p) noexcept : operation(&alock_next_turn::come), party_(p) {}

  /// Calls `party.look_again()`, once, and keeps `keep` until then. Under the lock of the party.
  void begin(completion_service& service, std::shared_ptr<void> keep) noexcept {
    if (keep_)
      return;
    keep_ = std::move(keep);
    service.operation_starting();
    operation_list done;
    done.push_back(*this);
    service.complete(done);
  }
  /// Whether `look_again` will be called. Under the lock of the party.
  bool is_queued() const noexcept { return keep_ != nullptr; }
  /// To be called by `look_again` under that lock, and kept until it is released.
  std::shared_ptr<void> end() noexcept { return std::move(keep_); }

private:
  static void come(operation* base, disposal) {
    static_cast<alock_next_turn*>(base)->party_.look_again();
  }

  Party& party_;
  std::shared_ptr<void> keep_; // while it is queued
};

} // namespace asio_rdma::detail
