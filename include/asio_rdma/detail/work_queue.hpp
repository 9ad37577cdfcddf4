// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/operation.hpp>

#include <mutex>

namespace asio_rdma::detail {

/// The operations of one send or receive queue, in two lists: those that the device has (at most
/// `depth`, so that the device's queue never overflows) and those that wait for room. The owner
/// says how operations are posted and what a failure means. Every member but `owner_mutex` is
/// called with that mutex locked.
class work_queue {
public:
  work_queue(std::mutex& owner_mutex, std::uint32_t depth) noexcept
      : mutex_(owner_mutex), depth_(depth) {}
  work_queue(const work_queue&) = delete;

  std::mutex& owner_mutex() noexcept { return mutex_; }
  std::uint32_t depth() const noexcept { return depth_; }
  void set_depth(std::uint32_t depth) noexcept { depth_ = depth; }
  bool empty() const noexcept { return posted_.empty() && waiting_.empty(); }
  bool any_posted() const noexcept { return !posted_.empty(); }

  /// Posts the operation, or lets it wait: behind others, while the queue is held, or for room.
  /// On an error the operation is in no list and stays the caller's.
  error_code start(operation& op);

  /// While held, operations are gathered; the last release posts them as one chain.
  void hold() noexcept { ++holds_; }
  void release(operation_list& failed);

  /// The device has completed `op`: moves it, and on a send queue the unsignaled ones before it,
  /// to `ready`, and posts what waits. The result is already in `op`.
  void complete(operation& op, operation_list& ready);

  /// Takes the waiting operation with that id out. The caller gives it its error.
  operation* remove_waiting(std::uint64_t id) noexcept;
  bool is_posted(std::uint64_t id) const noexcept;

  /// Takes all waiting operations out, with that error.
  void fail_waiting(const error_code& ec, operation_list& ready) noexcept;
  /// Takes the posted ones too: only once the device has let go of them.
  void fail_all(const error_code& ec, operation_list& ready) noexcept;

  /// Work completions, in the owner's terms. Called by the completion queue.
  virtual void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) = 0;

protected:
  ~work_queue() = default;

private:
  /// Posts a chain of operations. On an error `failed` is the first that was not posted, whose
  /// error is returned; those before it were posted.
  virtual error_code post(operation_list::iterator first, operation_list::iterator last,
                          operation*& failed) = 0;
  /// A send queue completes in order, so a completion speaks for the unsignaled ones before it.
  virtual bool in_order() const noexcept = 0;
  /// Called for each operation that the device has completed.
  virtual void on_retired(operation&) noexcept {}

  void post_waiting(operation_list& failed);

  std::mutex& mutex_;
  operation_list posted_, waiting_;
  std::uint32_t depth_;
  std::uint32_t used_ = 0;
  std::uint32_t holds_ = 0;

protected:
  std::uint32_t room() const noexcept { return depth_ - used_; }
};

} // namespace asio_rdma::detail
