// SPDX-License-Identifier: BSL-1.0
#include "core/background_calls.hpp"

#include <cassert>
#include <csignal>
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
    threads_.reserve(most_threads_);
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

void background_calls::make_calls() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
    auto call = waiting_.pop();
    if (!call)
      return;
    --calls_;
    --idle_;
    lock.unlock();
    call->run(call);
    call.reset();
    lock.lock();
    ++idle_;
  }
}

void background_calls::stop() noexcept {
  call_list dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    while (auto call = waiting_.pop())
      dropped.push(std::move(call));
    calls_ = 0;
  }
  finish();
}

void background_calls::finish() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) {
    assert(t.get_id() != std::this_thread::get_id());
    t.join();
  }
  threads_.clear();
}

} // namespace asio_rdma::detail
