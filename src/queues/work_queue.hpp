// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>

#include "core/biased_mutex.hpp"

#include <cassert>
#include <cstdint>
#include <limits>

namespace asio_rdma::detail {

/// The operations of a send or receive queue, in two lists: the posted ones (at most `depth`, so
/// that the device's queue never overflows) and those that wait for room. The owner defines how
/// operations are posted and the effects of a failure. All members but `owner_mutex` are called
/// with that mutex locked.
class work_queue {
public:
  work_queue(biased_mutex& owner_mutex, std::uint32_t depth) noexcept
      : mutex_(owner_mutex), depth_(depth) {}
  work_queue(const work_queue&) = delete;

  biased_mutex& owner_mutex() noexcept { return mutex_; }
  std::uint32_t depth() const noexcept { return depth_; }
  void set_depth(std::uint32_t depth) noexcept {
    assert(empty());
    depth_ = depth;
  }
  bool empty() const noexcept { return posted_.empty() && waiting_.empty(); }
  bool any_posted() const noexcept { return !posted_.empty(); }
  bool any_waiting() const noexcept { return !waiting_.empty(); }
  std::uint32_t room() const noexcept { return depth_ - used_; }

  /// Posts the operation, or queues it: behind waiting ones, while the queue is held, or until
  /// there is room. Some operations also wait for earlier ones to complete. If posting fails, or
  /// there never will be room, returns false with the error in the operation, which is then in no
  /// list. Here and below, other operations that end by the call are added to `ended`.
  bool start(operation& op, operation_list& ended);

  /// `start` in three steps, for callers that post themselves. `may_post`: whether an operation may
  /// be posted now. `posting`: it is about to be posted. `posted`: it has been posted.
  bool may_post() const noexcept { return used_ != depth_ && blocked_ == 0; }
  void posting(operation& op) noexcept { op.queue.store(this, std::memory_order_release); }
  void posted(operation& op) noexcept {
    assert(mutex_.is_locked() && used_ < depth_);
    posted_.push_back(op);
    ++used_;
  }

  /// Adds an operation to those that wait.
  void wait(operation& op) noexcept {
    assert(mutex_.is_locked() && depth_ != 0);
    posting(op);
    waiting_.push_back(op);
    ++blocked_;
  }

  /// While the queue is held, operations are gathered. The last `release` posts them as one chain.
  void hold() noexcept {
    assert(mutex_.is_locked());
    ++holds_;
    ++blocked_;
  }
  /// Whether operations are gathered now. A queue without depth gathers none.
  bool is_held() const noexcept { return holds_ != 0 && depth_ != 0; }
  void release(operation_list& ended);

  /// Called while the queue is held, when the device has none of the posted operations any more:
  /// they are posted again, in order and before all others, by the last `release`.
  void post_again() noexcept;

  /// Moves the completed operation to `ready` and posts waiting ones. Its result is already in
  /// `op`.
  void complete(operation& op, operation_list& ready);
  /// Completes an operation, like `complete`, if it is the oldest posted operation and no operation
  /// waits. Otherwise returns false.
  bool complete_oldest(operation& op, operation_list& ready) noexcept {
    assert(mutex_.is_locked() && !posted_.empty() && used_ != 0);
    if (&posted_.front() != &op || blocked_ != 0)
      return false;
    posted_.pop_front();
    --used_;
    ready.push_back(op);
    return true;
  }

  /// Removes the waiting operation with this id; null if there is none or it must stay. The caller
  /// sets its error.
  operation* remove_waiting(std::uint64_t id) noexcept;
  bool is_posted(std::uint64_t id) const noexcept;
  bool is_waiting(std::uint64_t id) const noexcept;
  template <class Function>
  void each_posted(Function&& f) const {
    for (const operation& op : posted_)
      f(op);
  }

  /// Removes all waiting operations, with this error.
  void fail_waiting(const error_code& ec, operation_list& ready) noexcept;
  /// Removes the posted operations as well. Called only when the device no longer uses them.
  void fail_all(const error_code& ec, operation_list& ready) noexcept;

  /// Processes a work completion as the owner defines. Called by the completion queue, unless the
  /// operation is `usual`, was successful, and `complete_oldest` completes it.
  virtual void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) = 0;

protected:
  static constexpr std::uint32_t any_number = std::numeric_limits<std::uint32_t>::max();

  ~work_queue() = default;

  /// Until this is called, no operation waits for earlier ones: `allowed_before` is not asked.
  void ask_allowed_before() noexcept { asks_allowed_before_ = true; }

  const operation& last_posted() const noexcept { return posted_.back(); }

  /// For a queue that completes in order: moves the operations before `op` that have no completion
  /// of their own to `ready`.
  void complete_silent(const operation& op, bool (*is_silent)(const operation&),
                       operation_list& ready);

private:
  /// Posts a chain of operations. Returns 0 or an errno value; then `failed` is the first operation
  /// that was not posted, and all before it were posted.
  virtual int post(operation_list::iterator first, operation_list::iterator last,
                   operation*& failed, operation_list& ended) = 0;
  /// Called for each operation that the device has completed.
  virtual void on_retired(operation&) noexcept {}
  /// Called after an operation was refused, with its error, and is not in the queue.
  virtual void on_refused(const operation&, operation_list& /*ended*/) {}

  /// The operation behind `earlier`, the last one of all, is about to be removed. Returns false if
  /// it must stay.
  virtual bool may_become_last(operation& /*earlier*/, bool /*posted*/) noexcept { return true; }

  /// An operation is not posted while more than `allowed_before` of the earlier operations that it
  /// `waits_for` are outstanding.
  virtual std::uint32_t allowed_before(const operation& /*op*/) const noexcept {
    return any_number;
  }
  virtual bool waits_for(const operation& /*op*/, const operation& /*earlier*/) const noexcept {
    return true;
  }

  bool must_wait(const operation& op, operation_list::const_iterator before) const noexcept;
  void post_waiting(operation_list& ended);

  biased_mutex& mutex_;
  operation_list posted_, waiting_;
  std::uint32_t depth_;
  std::uint32_t used_ = 0;
  std::uint32_t holds_ = 0;
  bool asks_allowed_before_ = false;
  std::uint32_t blocked_ = 0; // holds and waiting operations: the reasons not to post a new
                              // operation
};

} // namespace asio_rdma::detail
