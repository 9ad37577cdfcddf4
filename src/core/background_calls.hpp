// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

class background_call;

/// A queue of calls. Allocates nothing. A call is in one list at a time.
class call_list {
public:
  call_list() = default;
  call_list(const call_list&) = delete;
  ~call_list();

  bool empty() const noexcept { return first_ == nullptr; }
  void push(std::shared_ptr<background_call> call) noexcept;
  /// Null if the list is empty.
  std::shared_ptr<background_call> pop() noexcept;
  /// Returns null if the call is not in the list.
  std::shared_ptr<background_call> remove(const background_call& call) noexcept;
  void swap(call_list& other) noexcept {
    first_.swap(other.first_);
    std::swap(last_, other.last_);
  }

private:
  friend class call_groups;

  std::shared_ptr<background_call> first_;
  background_call* last_ = nullptr;
};

/// A call of the kernel that may block for long, with all that it uses.
class background_call {
public:
  virtual ~background_call() = default;

  /// Makes the call, on a thread of `background_calls`. Runs no code of the user's.
  virtual void run(const std::shared_ptr<background_call>& self) noexcept = 0;
  /// Calls with the same number share threads, such as those that one peer may make slow.
  virtual std::uint64_t group() const noexcept { return 0; }

private:
  friend class call_list;
  friend class call_groups;

  std::shared_ptr<background_call> next_;
  call_list others_; // of its group, if it is the group's first call in `call_groups`
};

inline call_list::~call_list() {
  while (!empty())
    pop();
}

inline void call_list::push(std::shared_ptr<background_call> call) noexcept {
  background_call* const added = call.get();
  (last_ == nullptr ? first_ : last_->next_) = std::move(call);
  last_ = added;
}

inline std::shared_ptr<background_call> call_list::pop() noexcept {
  std::shared_ptr<background_call> result = std::move(first_);
  if (result)
    first_ = std::move(result->next_);
  if (!first_)
    last_ = nullptr;
  return result;
}

inline std::shared_ptr<background_call> call_list::remove(const background_call& call) noexcept {
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

/// The queues of calls of each group. Allocates nothing.
class call_groups {
public:
  bool empty() const noexcept { return firsts_.empty(); }

  void push(std::shared_ptr<background_call> call) noexcept {
    for (background_call* c = firsts_.first_.get(); c != nullptr; c = c->next_.get())
      if (c->group() == call->group())
        return c->others_.push(std::move(call));
    firsts_.push(std::move(call));
  }

  /// The group with the least `running(group)`, if that is less than `limit`: its first call. Of
  /// equal groups, the one that has waited longest. Null if there is none.
  template <class Running>
  background_call* next(Running running, std::size_t limit) const noexcept {
    background_call* result = nullptr;
    for (background_call* c = firsts_.first_.get(); c != nullptr && limit != 0; c = c->next_.get())
      if (const std::size_t n = running(c->group()); n < limit) {
        result = c;
        limit = n;
      }
    return result;
  }

  /// Returns null if the call does not wait. The rest of its group then waits behind other groups.
  std::shared_ptr<background_call> remove(const background_call& call) noexcept {
    if (auto first = firsts_.remove(call)) {
      if (auto second = first->others_.pop()) {
        second->others_.swap(first->others_);
        firsts_.push(std::move(second));
      }
      return first;
    }
    for (background_call* c = firsts_.first_.get(); c != nullptr; c = c->next_.get())
      if (auto found = c->others_.remove(call))
        return found;
    return nullptr;
  }

  /// Moves all calls to the list, those of one group in their order.
  void move_to(call_list& all) noexcept {
    while (!empty())
      all.push(remove(*firsts_.first_));
  }

private:
  call_list firsts_; // one of each group
};

/// Threads that make blocking calls in place of the threads of an execution context. A thread is
/// started if a call finds no idle one, up to a limit, because one call may block for minutes. The
/// threads end with this object. They receive no signals.
class background_calls {
public:
  explicit background_calls(std::size_t most_threads) noexcept
      : background_calls(most_threads, most_threads) {}
  /// Calls of one group use at most `most_of_group` of the threads, until `finish`. Of the groups
  /// that wait, the one with the fewest threads gets the next one.
  background_calls(std::size_t most_threads, std::size_t most_of_group) noexcept
      : most_threads_(most_threads), most_of_group_(most_of_group) {}
  background_calls(const background_calls&) = delete;
  ~background_calls() { stop(); }

  /// Makes the call on another thread. Errors, after which nothing was started: those of starting
  /// the first thread; `operation_aborted` after `stop`.
  error_code start(std::shared_ptr<background_call> call);
  /// Removes a call that no thread has begun. Returns false if a thread has begun it.
  bool take_back(const background_call& call) noexcept;
  /// The number of calls that no thread has begun.
  std::size_t waiting() const noexcept;
  /// Waits until all calls have been made, by up to `threads` threads if that is more than before.
  /// No call is started afterwards.
  void finish(std::size_t threads = 0) noexcept;
  /// Like `finish`, but drops the calls that no thread has begun.
  void stop() noexcept;

private:
  void make_calls() noexcept;
  error_code start_thread();
  background_call* next() const noexcept;

  const std::size_t most_threads_, most_of_group_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  call_groups waiting_;
  std::vector<std::uint64_t> running_; // the group of each call that runs
  std::size_t calls_ = 0;              // that wait
  std::size_t idle_ = 0; // threads that take the next calls, those that are about to run included
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

} // namespace asio_rdma::detail
