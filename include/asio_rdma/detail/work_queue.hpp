// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/mutex.hpp>
#include <asio_rdma/detail/operation.hpp>

namespace asio_rdma::detail {

/// The operations of one send or receive queue, in two lists: those that the device has (at most
/// `depth`, so that the device's queue never overflows) and those that wait for room. The owner
/// says how operations are posted and what a failure means. Every member but `owner_mutex` is
/// called with that mutex locked.
class work_queue {
public:
  work_queue(mutex& owner_mutex, std::uint32_t depth) noexcept
      : mutex_(owner_mutex), depth_(depth) {}
  work_queue(const work_queue&) = delete;

  mutex& owner_mutex() noexcept { return mutex_; }
  std::uint32_t depth() const noexcept { return depth_; }
  void set_depth(std::uint32_t depth) noexcept { depth_ = depth; }
  bool empty() const noexcept { return posted_.empty() && waiting_.empty(); }
  bool any_posted() const noexcept { return !posted_.empty(); }
  bool any_waiting() const noexcept { return !waiting_.empty(); }
  std::uint32_t room() const noexcept { return depth_ - used_; }

  /// Posts the operation, or lets it wait: behind others, while the queue is held, or for room;
  /// some, until the device has completed those that it has. If
  /// that fails, or there never is room, gives false, with the error in the operation, which is in
  /// no list then. Others that end by it go to `ended`, here and below.
  bool start(operation& op, operation_list& ended);

  /// The same in steps, for who posts by himself: whether an operation may be posted now, that it
  /// will be, and that it was.
  bool may_post() const noexcept { return used_ != depth_ && blocked_ == 0; }
  void posting(operation& op) noexcept { op.queue.store(this, std::memory_order_release); }
  void posted(operation& op) noexcept {
    posted_.push_back(op);
    ++used_;
  }

  /// While held, operations are gathered; the last release posts them as one chain.
  void hold() noexcept {
    ++holds_;
    ++blocked_;
  }
  void release(operation_list& ended);

  /// The device has completed `op`: moves it to `ready`, and posts what waits. The result is
  /// already in `op`.
  void complete(operation& op, operation_list& ready);
  /// The same for the oldest posted operation, if nothing waits: false if that is not so.
  bool complete_oldest(operation& op, operation_list& ready) noexcept {
    if (&posted_.front() != &op || blocked_ != 0)
      return false;
    posted_.pop_front();
    --used_;
    ready.push_back(op);
    return true;
  }

  /// Takes the waiting operation with that id out. The caller gives it its error.
  operation* remove_waiting(std::uint64_t id) noexcept;
  bool is_posted(std::uint64_t id) const noexcept;
  bool is_waiting(std::uint64_t id) const noexcept;
  template <class Function>
  void each_posted(Function&& f) const {
    for (const operation& op : posted_)
      f(op);
  }

  /// Takes all waiting operations out, with that error.
  void fail_waiting(const error_code& ec, operation_list& ready) noexcept;
  /// Takes the posted ones too: only once the device has let go of them.
  void fail_all(const error_code& ec, operation_list& ready) noexcept;

  /// Work completions, in the owner's terms. Called by the completion queue.
  virtual void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) = 0;

protected:
  ~work_queue() = default;

  const operation& last_posted() const noexcept { return posted_.back(); }

  /// For a queue that completes in order: moves those before `op` that the device says nothing of
  /// to `ready`.
  void complete_silent(const operation& op, bool (*is_silent)(const operation&),
                       operation_list& ready);

private:
  /// Posts a chain of operations. On an error gives its errno value, and in `failed` the first
  /// operation that was not posted; those before it were.
  virtual int post(operation_list::iterator first, operation_list::iterator last,
                   operation*& failed, operation_list& ended) = 0;
  /// Called for each operation that the device has completed.
  virtual void on_retired(operation&) noexcept {}
  /// Called after an operation was refused with that error, and is in no list any more.
  virtual void on_refused(const error_code&, operation_list& /*ended*/) {}

  /// Whether an operation must not be posted before the device has completed those before it, and
  /// which of these.
  virtual bool waits_for_others(const operation& /*op*/) const noexcept { return false; }
  virtual bool is_waited_for(const operation& /*op*/) const noexcept { return true; }

  bool must_wait(const operation& op, operation_list::const_iterator before) const noexcept;
  void post_waiting(operation_list& ended);

  mutex& mutex_;
  operation_list posted_, waiting_;
  std::uint32_t depth_;
  std::uint32_t used_ = 0;
  std::uint32_t holds_ = 0;
  std::uint32_t blocked_ = 0; // holds and waiting operations: what keeps a new one from the device
};

} // namespace asio_rdma::detail
