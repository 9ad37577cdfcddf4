// SPDX-License-Identifier: BSL-1.0
#include "core/background_calls.hpp"

#include <algorithm>
#include <cassert>
#include <csignal>
#include <limits>
#include <new>
#include <system_error>

namespace asio_rdma::detail {
namespace {

/// A thread that is started meanwhile receives no signals of the process: the program's handlers
/// run on the program's threads.
class without_signals {
public:
  without_signals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  without_signals(const without_signals&) = delete;
  ~without_signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
  sigset_t before_{};
};

} // namespace

error_code background_calls::start(std::shared_ptr<background_call> call) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_)
      return asio::error::operation_aborted;
    if (calls_ >= idle_ && threads_.size() < most_threads_)
      if (const error_code ec = start_thread())
        return ec;
    waiting_.push(std::move(call));
    ++calls_;
  }
  changed_.notify_one();
  return {};
}

// If a further thread cannot be started, the call waits for one of the others.
error_code background_calls::start_thread() {
  const bool first = threads_.empty();
  try {
    threads_.reserve(threads_.size() + 1);
    running_.reserve(threads_.size() + 1); // so that a thread allocates nothing
    const without_signals meanwhile;
    threads_.emplace_back([this] { make_calls(); });
    ++idle_;
  } catch (const std::system_error& e) {
    if (first)
      return system_error_code(e.code().value());
  } catch (const std::bad_alloc&) {
    if (first)
      throw;
  }
  return {};
}

bool background_calls::take_back(const background_call& call) noexcept {
  const std::lock_guard lock(mutex_);
  const auto taken = waiting_.remove(call);
  if (taken)
    --calls_;
  return taken != nullptr;
}

std::size_t background_calls::waiting() const noexcept {
  const std::lock_guard lock(mutex_);
  return calls_;
}

// After `finish` there is nothing that other groups could wait for.
background_call* background_calls::next() const noexcept {
  const auto running = [this](std::uint64_t group) {
    return static_cast<std::size_t>(std::count(running_.begin(), running_.end(), group));
  };
  return waiting_.next(running,
                       stopped_ ? std::numeric_limits<std::size_t>::max() : most_of_group_);
}

void background_calls::make_calls() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    background_call* chosen = nullptr;
    changed_.wait(lock, [&] {
      chosen = next();
      return stopped_ || chosen != nullptr;
    });
    if (chosen == nullptr)
      return;
    auto call = waiting_.remove(*chosen);
    const std::uint64_t group = call->group();
    running_.push_back(group);
    --calls_;
    --idle_;
    lock.unlock();
    call->run(call);
    call.reset();
    lock.lock();
    running_.erase(std::find(running_.begin(), running_.end(), group));
    ++idle_;
  }
}

void background_calls::stop() noexcept {
  call_list dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    waiting_.move_to(dropped);
    calls_ = 0;
  }
  finish();
}

// Without further threads, those that exist make the calls.
void background_calls::finish(std::size_t threads) noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (std::size_t before = 0; before != threads_.size() && threads_.size() < threads;) {
      before = threads_.size();
      if (calls_ > idle_)
        static_cast<void>(start_thread());
    }
  }
  changed_.notify_all();
  for (std::thread& t : threads_) {
    assert(t.get_id() != std::this_thread::get_id());
    t.join();
  }
  threads_.clear();
}

} // namespace asio_rdma::detail
