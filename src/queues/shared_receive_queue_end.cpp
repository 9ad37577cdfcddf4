// SPDX-License-Identifier: BSL-1.0
// A shared receive queue and its receives end: cancelled, failed or closed.
#include "queues/queue_pair_remains.hpp"
#include "queues/shared_receive_queue_impl.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/withheld.hpp"

#include <algorithm>
#include <cassert>
#include <memory>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {

void shared_receive_queue_impl::fail_waiters(const error_code& ec) {
  assert(mutex_.is_locked());
  for (operation& op : waiters_)
    op.fail(ec);
  service_.complete(waiters_);
}

// Posted receives are not cancelled: another queue pair may be filling one of them.
void shared_receive_queue_impl::cancel() {
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    if (srq_ == nullptr)
      return;
    receive_.fail_waiting(asio::error::operation_aborted, ready);
    fail_waiters(asio::error::operation_aborted);
  }
  cq_->complete(ready);
}

void shared_receive_queue_impl::cancel(std::uint64_t id, asio::cancellation_type_t) {
  operation_list ready, done;
  {
    const std::lock_guard lock(mutex_);
    if (srq_ == nullptr)
      return;
    const auto waiter = std::find_if(waiters_.begin(), waiters_.end(),
                                     [id](const operation& o) { return o.id == id; });
    if (operation* op = receive_.remove_waiting(id)) {
      op->fail(asio::error::operation_aborted);
      ready.push_back(*op);
    } else if (waiter != waiters_.end()) {
      waiter->fail(asio::error::operation_aborted);
      done.splice(done.end(), waiters_, waiter);
    }
  }
  cq_->complete(ready);
  service_.complete(done);
}

void shared_receive_queue_impl::detach(queue_pair_impl& qp, bool destroyed, bool confirmed) {
  bool closing = false;
  {
    const std::lock_guard lock(mutex_);
    assert(std::find(attached_.begin(), attached_.end(), &qp) != attached_.end());
    kept_ = kept_ || !destroyed;
    if (!confirmed)
      ++unconfirmed_;
    std::erase(attached_, &qp);
    if (!attached_.empty() || (!closing_ && !reason_))
      return;
    closing = closing_;
  }
  if (closing)
    destroy();
  else
    end_receives();
}

// Fails the queue and its queue pairs. The last queue pair to be destroyed ends the posted
// receives. If `only` is set, does nothing unless `only` is still the verbs object.
void shared_receive_queue_impl::fail(const error_code& why, const ibv_srq* only) {
  operation_list left;
  bool in_use = false;
  {
    const std::lock_guard lock(mutex_);
    if (srq_ == nullptr || closing_ || reason_ || (only != nullptr && only != srq_))
      return;
    reason_ = why;
    in_use = !attached_.empty();
    receive_.fail_waiting(why, left);
    fail_waiters(why);
  }
  cq_->complete(left);
  if (!in_use)
    end_receives();
}

// Without present or future queue pairs the device fills no receive any more, unless it has refused
// to destroy a queue pair.
void shared_receive_queue_impl::end_receives() noexcept {
  cq_->drain();
  operation_list left;
  {
    const std::lock_guard lock(mutex_);
    if (kept_)
      find_posted_blocks<receive_operation>(receive_, kept_memory_);
    receive_.fail_all(kept_ ? error_code(error::device_keeps_memory) : reason_, left);
  }
  cq_->complete(left);
}

void shared_receive_queue_impl::close() {
  operation_list left;
  bool in_use = false;
  {
    const std::lock_guard lock(mutex_);
    if (srq_ == nullptr || closing_)
      return;
    closing_ = true;
    in_use = !attached_.empty();
    receive_.fail_waiting(asio::error::operation_aborted, left);
    fail_waiters(asio::error::operation_aborted);
  }
  cq_->complete(left);
  if (!in_use)
    destroy();
}

// A completion that comes later is of a queue pair that was not destroyed either, and is dropped.
void shared_receive_queue_impl::destroy() noexcept {
  service_.remove(*this);
  bool late = false, kept = false;
  {
    const std::lock_guard lock(mutex_);
    late = lingering_ != 0;
    kept = kept_;
    if (late)
      destroyed_late_ = srq_;
  }
  const bool destroyed = late ? !kept : destroy(srq_);
  cq_->drain();
  operation_list left;
  {
    const std::lock_guard lock(mutex_);
    srq_ = nullptr;
    if (!destroyed)
      find_posted_blocks<receive_operation>(receive_, kept_memory_);
    receive_.fail_all(destroyed ? error_code(asio::error::operation_aborted)
                                : error_code(error::device_keeps_memory),
                      left);
  }
  cq_->complete(left);
}

bool shared_receive_queue_impl::destroy(ibv_srq* srq) noexcept {
  if (end_use(cq_->get_device(), &ibv_destroy_srq, srq) != 0) {
    refused_->keep(std::static_pointer_cast<shared_receive_queue_impl>(shared_from_this()), srq);
    withhold(std::move(refused_));
    return false;
  }
  cq_->unreserve(options_.depth);
  const std::lock_guard lock(mutex_);
  kept_memory_.clear();
  return true;
}

void shared_receive_queue_impl::linger() {
  const std::lock_guard lock(mutex_);
  ++lingering_;
}

void shared_receive_queue_impl::lingered() {
  ibv_srq* srq = nullptr;
  {
    const std::lock_guard lock(mutex_);
    assert(lingering_ != 0);
    if (--lingering_ == 0)
      srq = std::exchange(destroyed_late_, nullptr);
  }
  if (srq != nullptr)
    destroy(srq);
}

void shared_receive_queue_impl::on_device_event(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
  case IBV_EVENT_SRQ_LIMIT_REACHED: {
    const std::lock_guard lock(mutex_);
    if (srq_ != nullptr && event.element.srq == srq_)
      service_.complete(waiters_);
    break;
  }
  case IBV_EVENT_SRQ_ERR:
    fail(error::queue_pair_fatal, event.element.srq);
    break;
  case IBV_EVENT_CQ_ERR:
    if (event.element.cq == cq_->native_handle())
      fail(fatal_error(cq_->get_device(), error::queue_pair_fatal));
    break;
  case IBV_EVENT_DEVICE_FATAL:
    fail(fatal_error(cq_->get_device()));
    break;
  default:
    break;
  }
}

} // namespace asio_rdma::detail
