// SPDX-License-Identifier: BSL-1.0
// Operations of a queue pair are started: they are posted, or they wait.
#include "queues/queue_pair_impl.hpp"

#include "core/probe.hpp"

#include <cassert>
#include <cstdlib>
#include <type_traits>

namespace asio_rdma::detail {

error_code queue_pair_impl::check_start(queue_pair_state least) const {
  assert(mutex_.is_locked());
  const queue_pair_state now = state_.load(std::memory_order_relaxed);
  if (now == least || now == queue_pair_state::connected) [[likely]]
    return {};
  if (now == queue_pair_state::failed)
    return reason_;
  if (now == queue_pair_state::closed)
    return asio::error::bad_descriptor;
  return asio::error::not_connected;
}

// Once the mutex is unlocked after starting an operation, the functions below use only locals:
// the handler may have run on another thread and destroyed this object.

// The slow path: errors, and operations that must wait.
template <class Operation>
bool queue_pair_impl::start_slowly(work_queue& queue, Operation& op, std::uint32_t max_sge,
                                   queue_pair_state least) {
  assert(mutex_.is_locked());
  operation_list ended;
  std::shared_ptr<completion_queue_impl> cq;
  bool started = false;
  bool background = false;
  if constexpr (std::is_same_v<Operation, receive_operation>)
    background = op.background;
  {
    const std::lock_guard lock(mutex_, std::adopt_lock);
    op.ec = check_start(least);
    if (!op.ec && op.wr.num_sge > static_cast<int>(max_sge))
      op.ec = error::too_many_buffers;
    if constexpr (std::is_same_v<Operation, send_operation>) {
      if (!op.ec && !supports(op.wr.opcode))
        op.ec = asio::error::operation_not_supported;
      if (!op.ec && op.wr.opcode == IBV_WR_RDMA_READ &&
          op.wr.num_sge > static_cast<int>(pd_.get_device().max_read_buffers()))
        op.ec = error::too_many_buffers;
      if (!op.ec && op.bytes > pd_.get_device().max_message_bytes())
        op.ec = asio::error::message_size;
    }
    if (op.ec)
      return false;
    background ? cq_->background_starting() : cq_->operation_starting(op);
    started = queue.start(op, ended);
    if (started)
      cq_->operation_started();
    if (!started || !ended.empty())
      cq = cq_;
  }
  if (!started) {
    if (background)
      cq->background_ending();
    cq->operation_not_started(op);
  }
  if (!ended.empty())
    cq->complete(ended);
  return started;
}

// As in `send_queue::post`.
bool queue_pair_impl::start_failed(send_operation& op, int e, bool is_refused) {
  assert(mutex_.is_locked() && e != 0);
  const error_code ec = system_error_code(std::abs(e)); // siw negates the error
  const auto cq = cq_;
  operation_list ended;
  {
    const std::lock_guard lock(mutex_, std::adopt_lock);
    if (is_refused) {
      op.fail(ec);
      send_.on_refused(op, ended);
    } else {
      send_.posted(op);
      enter_failed(ec, ended);
    }
  }
  if (is_refused)
    cq->operation_not_started(op);
  if (!ended.empty())
    cq->complete(ended);
  return !is_refused;
}

bool queue_pair_impl::receive_refused(receive_operation& op, int e) {
  assert(mutex_.is_locked() && e != 0);
  const auto cq = cq_;
  const bool background = op.background;
  op.fail(system_error_code(std::abs(e)));
  mutex_.unlock();
  if (background)
    cq->background_ending();
  cq->operation_not_started(op);
  return false;
}

// Called with the mutex locked, and unlocks it.
bool queue_pair_impl::start_unusual(send_operation& op) {
  assert(mutex_.is_locked());
  if (state_.load(std::memory_order_relaxed) != queue_pair_state::connected || !op.usual ||
      !send_.is_held())
    return start_slowly(send_, op, options_.max_send_sge, queue_pair_state::connected);
  cq_->operation_starting(op); // of a batch
  send_.wait(op);
  mutex_.unlock();
  return true;
}

bool start(queue_pair_impl& impl, send_operation& op) {
  ASIO_RDMA_PROBE(start, static_cast<operation*>(&op), impl.number(), op.wr.opcode);
  impl.mutex_.lock();
  if (impl.state_.load(std::memory_order_relaxed) != queue_pair_state::connected || !op.usual ||
      !impl.send_.may_post()) [[unlikely]]
    return impl.start_unusual(op);
  impl.cq_->operation_starting(op);
  use_inline(op, impl.options_.max_inline, false);
  assert(impl.qp_ != nullptr);
  impl.send_.posting(op);
  ASIO_RDMA_PROBE(post, static_cast<operation*>(&op), impl.number(), op.wr.opcode);
  ibv_send_wr* bad = &op.wr;
  if (const int e = ibv_post_send(impl.qp_, &op.wr, &bad)) [[unlikely]]
    return impl.start_failed(op, e, bad != nullptr);
  impl.send_.posted(op);
  impl.cq_->operation_started();
  impl.mutex_.unlock();
  return true;
}

// Once the queue pair is connected, `supports` does not change. Before that, start_slowly decides
// under the lock.
bool start(queue_pair_impl& impl, checked_operation& op) {
  if (impl.state() != queue_pair_state::connected || impl.limits_reads())
    op.usual = false;
  if (!impl.supports(op.wr.opcode)) {
    op.ec = asio::error::operation_not_supported;
    return false;
  }
  return start(impl, static_cast<send_operation&>(op));
}

error_code queue_pair_impl::prepare_bind(memory_window_impl& window, ibv_send_wr& wr) {
  const std::lock_guard lock(mutex_);
  error_code ec = check_start(queue_pair_state::connected);
  if (!ec)
    ec = window.give_to(windows_);
  if (!ec)
    wr.bind_mw.rkey = window.next_key();
  return ec;
}

bool start(queue_pair_impl& impl, bind_operation& op) {
  op.ec = impl.supports(op.wr.opcode) ? impl.prepare_bind(*op.window, op.wr)
                                      : error_code(asio::error::operation_not_supported);
  return !op.ec && start(impl, static_cast<send_operation&>(op));
}

bool start(queue_pair_impl& impl, receive_operation& op) {
  if (impl.srq_ || (op.device_only && !impl.pd_.get_device().has_device_only_receives())) {
    op.ec = asio::error::operation_not_supported;
    return false;
  }
  give_element(op, impl.pd_.get_device());
  impl.mutex_.lock();
  const queue_pair_state now = impl.state_.load(std::memory_order_relaxed);
  if ((now != queue_pair_state::connected && now != queue_pair_state::open) ||
      op.wr.num_sge > static_cast<int>(impl.options_.max_receive_sge) || !impl.receive_.may_post())
      [[unlikely]]
    return impl.start_slowly(impl.receive_, op, impl.options_.max_receive_sge,
                             queue_pair_state::open);
  op.ec = {};
  const bool background = op.background;
  background ? impl.cq_->background_starting() : impl.cq_->operation_starting(op);
  assert(impl.qp_ != nullptr);
  impl.receive_.posting(op);
  op.wr.next = nullptr;
  ibv_recv_wr* bad = nullptr;
  if (const int e = ibv_post_recv(impl.qp_, &op.wr, &bad)) [[unlikely]]
    return impl.receive_refused(op, e);
  impl.receive_.posted(op);
  impl.cq_->operation_started();
  impl.mutex_.unlock();
  return true;
}

bool queue_pair_impl::start(operation& op) {
  const std::lock_guard lock(mutex_);
  op.ec = check_start(queue_pair_state::open);
  if (op.ec)
    return false;
  service_.operation_starting();
  waiters_.push_back(op);
  return true;
}

bool queue_pair_impl::start_last(operation& op) {
  const std::lock_guard lock(mutex_);
  op.ec = check_start(queue_pair_state::open);
  if (op.ec)
    return false;
  assert(last_ == nullptr && op.internal);
  cq_->background_starting();
  last_ = &op;
  cq_->operation_started();
  return true;
}

void queue_pair_impl::hold() {
  const std::lock_guard lock(mutex_);
  send_.hold();
  receive_.hold();
}

void queue_pair_impl::release() {
  const auto cq = cq_;
  operation_list ended;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    receive_.release(ended);
    send_.release(ended);
    cq->operation_started();
  }
  cq->complete(ended);
}

} // namespace asio_rdma::detail
