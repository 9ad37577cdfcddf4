// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// A call of the kernel that may block for long, with all that it uses.
class background_call {
public:
  virtual ~background_call() = default;

  /// Makes the call, on a thread of `background_calls`. Runs no code of the user's.
  virtual void run(const std::shared_ptr<background_call>& self) noexcept = 0;

private:
  friend class call_list;

  std::shared_ptr<background_call> next_;
};

/// A queue of calls. Allocates nothing. A call is in one list at a time.
class call_list {
public:
  call_list() = default;
  call_list(const call_list&) = delete;
  ~call_list() {
    while (!empty())
      pop();
  }

  bool empty() const noexcept { return first_ == nullptr; }

  void push(std::shared_ptr<background_call> call) noexcept {
    background_call* const added = call.get();
    (last_ == nullptr ? first_ : last_->next_) = std::move(call);
    last_ = added;
  }

  /// Null if the list is empty.
  std::shared_ptr<background_call> pop() noexcept {
    std::shared_ptr<background_call> result = std::move(first_);
    if (result)
      first_ = std::move(result->next_);
    if (!first_)
      last_ = nullptr;
    return result;
  }

  /// Returns null if the call is not in the list.
  std::shared_ptr<background_call> remove(const background_call& call) noexcept {
    background_call* before = nullptr;
    for (background_call* c = first_.get(); c != nullptr; before = c, c = c->next_.get()) {
      if (c != &call)
        continue;
      auto& at = before == nullptr ? first_ : before->next_;
      std::shared_ptr<background_call> result = std::move(at);
      at = std::move(result->next_);
      if (last_ == c)
        last_ = before;
      return result;
    }
    return nullptr;
  }

private:
  std::shared_ptr<background_call> first_;
  background_call* last_ = nullptr;
};

/// Threads that make blocking calls in place of the threads of an execution context. A thread is
/// started if a call finds no idle one, up to a limit, because one call may block for minutes. The
/// threads end with this object. They receive no signals.
class background_calls {
public:
  explicit background_calls(std::size_t most_threads) noexcept : most_threads_(most_threads) {}
  background_calls(const background_calls&) = delete;
  ~background_calls() { stop(); }

  /// Makes the call on another thread. Errors, after which nothing was started: those of starting
  /// the first thread; `operation_aborted` after `stop`.
  error_code start(std::shared_ptr<background_call> call);
  /// Removes a call that no thread has begun. Returns false if a thread has begun it.
  bool take_back(const background_call& call) noexcept;
  /// The number of calls that no thread has begun.
  std::size_t waiting() const noexcept;
  /// Waits until all calls have been made. No call is started afterwards.
  void finish() noexcept;
  /// Like `finish`, but drops the calls that no thread has begun.
  void stop() noexcept;

private:
  void make_calls() noexcept;
  error_code start_thread();

  const std::size_t most_threads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  call_list waiting_;
  std::size_t calls_ = 0; // in the list
  std::size_t idle_ = 0;  // threads that take the next calls, those that are about to run included
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

} // namespace asio_rdma::detail
