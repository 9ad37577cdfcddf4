// SPDX-License-Identifier: BSL-1.0
// The loops of a measurement at the near side.
#pragma once

#include "../report/histogram.hpp"
#include "end.hpp"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>

namespace perf {

using clock_type = std::chrono::steady_clock;

/// Runs an end for a time. A coroutine waits for the end of the loop, and handlers do the work.
class loop : public listener {
public:
  loop(asio::io_context& io, near_end& e)
      : end_(e), over_(io, asio::steady_timer::time_point::max()) {
    e.listen(this);
  }
  loop(const loop&) = delete;
  ~loop() { end_.listen(nullptr); }

  void failed(const error_code& ec) final {
    error_ = ec;
    stop();
  }

protected:
  /// Waits for `stop`. Throws the end's error.
  awaitable<void> wait() {
    while (!stopped_ && !error_) {
      error_code ec;
      co_await over_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    }
    stopped_ = false;
    if (error_)
      throw system_error(error_);
  }
  void stop() {
    stopped_ = true;
    over_.cancel();
  }

  near_end& end_;

private:
  asio::steady_timer over_;
  error_code error_;
  bool stopped_ = false;
};

inline clock_type::duration to_duration(double seconds) {
  return std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(seconds));
}

/// One operation, or round trip, after the other, at least one.
class latency_loop : public loop {
public:
  using loop::loop;

  /// Adds the duration of each to the histogram.
  awaitable<void> run(double seconds, histogram& to) {
    to_ = &to;
    last_ = clock_type::now();
    until_ = last_ + to_duration(seconds);
    end_.start();
    co_await wait();
  }

private:
  void completed() override {
    const auto now = clock_type::now();
    to_->add(std::uint64_t(std::chrono::nanoseconds(now - last_).count()));
    last_ = now;
    if (now < until_)
      end_.start();
    else
      stop();
  }

  histogram* to_ = nullptr;
  clock_type::time_point last_, until_;
};

/// As many operations at a time as the window says, at least one in all.
class window_loop : public loop {
public:
  window_loop(asio::io_context& io, near_end& e, std::uint32_t window)
      : loop(io, e), window_(window) {}

  /// Returns when all operations have completed.
  awaitable<void> run(double seconds) {
    operations_ = 0;
    until_ = clock_type::now() + to_duration(seconds);
    running_ = true;
    fill();
    co_await wait();
  }
  /// Of the last run.
  std::uint64_t operations() const noexcept { return operations_; }

private:
  void completed() override {
    --outstanding_;
    fill();
  }
  void changed() override { fill(); }

  void fill() {
    if (!running_)
      return;
    const bool over = operations_ != 0 && clock_type::now() >= until_;
    while (!over && outstanding_ < window_ && end_.can_start()) {
      ++outstanding_;
      ++operations_;
      end_.start();
    }
    if (over && outstanding_ == 0) {
      running_ = false;
      stop();
    }
  }

  const std::uint32_t window_;
  std::uint32_t outstanding_ = 0;
  std::uint64_t operations_ = 0;
  clock_type::time_point until_;
  bool running_ = false;
};

} // namespace perf
