// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_RECEIVE_QUEUE_HPP
#define SOFT_DEVICE_RECEIVE_QUEUE_HPP

#include "device/objects.hpp"
#include "device/work_queue.hpp"
#include "engine/engine.hpp"

#include <set>

namespace soft {

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
  /// Schedules `sender`, whose message found no receive, once one is posted.
  void wait(task& sender);
  void stop_waiting(task& sender) { waiting_.erase(&sender); }
  /// Before the queue is destroyed.
  void close() { engine::get().remove(*this); }

private:
  void run() override;

  request_ring<receive_work> ring_;
  const unsigned elements_;
  spin_mutex posting_;
  std::atomic<bool> wanted_{false};
  std::set<task*> waiting_;
};

/// A shared receive queue.
struct shared_queue : ibv_srq {
  counted<&resource_counts::shared_receive_queues> count;

  shared_queue(unsigned capacity, unsigned elements) : receives(capacity, elements) {}
  static shared_queue& of(ibv_srq* s) noexcept { return *static_cast<shared_queue*>(s); }

  /// After a receive was taken: tells that fewer than the limit are left, once.
  void taken();

  receive_queue receives;
  unsigned limit = 0;
  std::atomic<int> users{0};
  acknowledged_events events_got;
};

} // namespace soft

#endif
