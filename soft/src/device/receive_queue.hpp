// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_RECEIVE_QUEUE_HPP
#define SOFT_DEVICE_RECEIVE_QUEUE_HPP

#include "device/objects.hpp"
#include "device/work_queue.hpp"
#include "engine/engine.hpp"

#include <set>

namespace soft {

class receive_queue;

/// The place of a task among those that wait for a receive. It waits at one queue at a time, and
/// no longer than that queue exists.
class receive_waiter {
public:
  explicit receive_waiter(task& t) : task_(t) {}
  ~receive_waiter() { stop(); }
  receive_waiter(const receive_waiter&) = delete;
  receive_waiter& operator=(const receive_waiter&) = delete;
  void stop();

private:
  friend class receive_queue;
  task& task_;
  receive_queue* at_ = nullptr;
};

/// The receives of a queue pair, or of a shared receive queue.
class receive_queue : private task {
public:
  receive_queue(unsigned capacity, unsigned elements)
      : ring_(capacity, elements * sizeof(ibv_sge)), elements_(elements) {}
  ~receive_queue() = default;

  unsigned capacity() const noexcept { return ring_.capacity(); }
  unsigned elements() const noexcept { return elements_; }
  unsigned size() const noexcept { return ring_.size(); }

  /// ibv_post_recv(3). From any thread. Errors: EINVAL (too many elements), ENOMEM (full).
  int post(ibv_recv_wr* first, ibv_recv_wr** bad) noexcept;

  // ---- with the engine locked
  receive_work* front() noexcept { return ring_.front(); }
  void take() noexcept { ring_.take(); }
  /// Schedules the task of `w`, whose message found no receive, once a receive is posted, or `wake`
  /// is called.
  void wait(receive_waiter& w);
  /// Schedules all tasks that wait: a queue pair of these receives has ended.
  void wake();
  /// Before the queue is destroyed.
  void close();

private:
  friend class receive_waiter;
  void run() override { wake(); }

  request_ring<receive_work> ring_;
  const unsigned elements_;
  spin_mutex posting_;
  std::atomic<bool> wanted_{false};
  std::set<receive_waiter*> waiting_;
};

/// A shared receive queue.
struct shared_queue : ibv_srq {
  counted<&resource_counts::shared_receive_queues> count;

  shared_queue(unsigned capacity, unsigned elements) : receives(capacity, elements) {}
  static shared_queue& of(ibv_srq* s) noexcept { return *static_cast<shared_queue*>(s); }

  /// To be called after a receive was taken: raises IBV_EVENT_SRQ_LIMIT_REACHED once if fewer than
  /// the limit are left.
  void taken();

  receive_queue receives;
  unsigned limit = 0;
  std::atomic<int> users{0};
  acknowledged_events events_got;
};

} // namespace soft

#endif
