// SPDX-License-Identifier: BSL-1.0
#include "queues/shared_receive_queue_impl.hpp"

#include "core/device_files.hpp"
#include "queues/queue_pair_impl.hpp"
#include "queues/queue_pair_remains.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/withheld.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {
namespace {

bool before_number(const queue_pair_impl* qp, std::uint32_t number) noexcept {
  return qp->number() < number;
}

} // namespace

int shared_receive_queue_impl::shared_work_queue::post(operation_list::iterator first,
                                                       operation_list::iterator last,
                                                       operation*& failed, operation_list&) {
  assert(srq_.srq_ != nullptr);
  return post_receives(first, last, failed, [this](ibv_recv_wr* head, ibv_recv_wr** bad) {
    return ibv_post_srq_recv(srq_.srq_, head, bad);
  });
}

void shared_receive_queue_impl::shared_work_queue::on_completion(operation& op, const ibv_wc& wc,
                                                                 operation_list& ready) {
  take_receive_result(op, wc);
  if (wc.status == IBV_WC_WR_FLUSH_ERR)
    op.fail(srq_.reason_ ? srq_.reason_ : error_code(asio::error::connection_reset));
  else if (wc.status != IBV_WC_SUCCESS)
    op.fail(completion_error(wc.status));
  op.qp_num = wc.qp_num; // also for a receive that was not filled
  complete(op, ready);
  if (wc.status == IBV_WC_SUCCESS) [[likely]] {
    if (srq_.awaiting_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      if (queue_pair_impl* const qp = srq_.awaiting(wc.qp_num))
        qp->shared_receive_arrived(ready);
    return;
  }
  const auto& attached = srq_.attached_;
  const auto from = std::find_if(attached.begin(), attached.end(),
                                 [&wc](const auto* qp) { return qp->number() == wc.qp_num; });
  if (from != attached.end())
    (*from)->shared_receive_failed(wc, ready);
}

shared_receive_queue_impl::shared_receive_queue_impl(asio::execution_context& context,
                                                     const protection_domain& pd,
                                                     const shared_receive_queue_options& options)
    : service_(completion_service::of(context)), pd_(pd), options_(options), receive_(*this) {}

shared_receive_queue_impl::~shared_receive_queue_impl() = default;

error_code shared_receive_queue_impl::open(std::shared_ptr<completion_queue_impl> queue) {
  if (!pd_.is_open())
    return asio::error::bad_descriptor;
  const device& d = pd_.get_device();
  const auto limit = [](std::uint32_t& value, int most) {
    value = std::min(value, static_cast<std::uint32_t>(std::max(most, 1)));
  };
  if (d.attributes().max_srq == 0)
    return asio::error::operation_not_supported;
  limit(options_.depth, d.attributes().max_srq_wr);
  limit(options_.max_sge, d.attributes().max_srq_sge);
  if (const error_code ec = use(std::move(queue)))
    return ec;
  member_opening attempt(srq_, &ibv_destroy_srq, *cq_, options_.depth);
  srq_ = make();
  if (srq_ == nullptr)
    return creation_error();
  return attempt.finish(service_, *this);
}

ibv_srq* shared_receive_queue_impl::make() noexcept {
  ibv_srq_init_attr init{};
  init.srq_context = this;
  init.attr.max_wr = options_.depth;
  init.attr.max_sge = options_.max_sge;
  return ibv_create_srq(pd_.native_handle(), &init);
}

error_code shared_receive_queue_impl::adopt(std::shared_ptr<completion_queue_impl> queue,
                                            ibv_srq* srq) {
  if (srq == nullptr || srq->pd != pd_.native_handle())
    return asio::error::invalid_argument;
  if (const error_code ec = use(std::move(queue)))
    return ec;
  member_opening attempt(srq_, &ibv_destroy_srq, *cq_, options_.depth);
  attempt.adopt(srq);
  adopted_ = true;
  return attempt.finish(service_, *this);
}

// Reserves completion queue entries for the receives.
error_code shared_receive_queue_impl::use(std::shared_ptr<completion_queue_impl> queue) {
  receive_.set_depth(options_.depth);
  refused_ = std::make_unique<refused>();
  error_code ec;
  cq_ = service_.use_queue(std::move(queue), pd_.get_device(), options_.depth, ec);
  return ec;
}

bool shared_receive_queue_impl::is_open() const {
  const std::lock_guard lock(mutex_);
  return srq_ != nullptr && !closing_;
}

bool shared_receive_queue_impl::is_ending() const {
  const std::lock_guard lock(mutex_);
  return closing_ || reason_;
}

bool start(shared_receive_queue_impl& impl, receive_operation& op) {
  give_element(op, impl.pd_.get_device());
  const std::lock_guard lock(impl.mutex_);
  if (impl.srq_ == nullptr || impl.closing_)
    op.ec = asio::error::bad_descriptor;
  else if (impl.reason_)
    op.ec = impl.reason_;
  else if (op.wr.num_sge > static_cast<int>(impl.options_.max_sge))
    op.ec = error::too_many_buffers;
  else if (op.device_only && !impl.pd_.get_device().has_device_only_receives())
    op.ec = asio::error::operation_not_supported;
  if (op.ec)
    return false;
  op.background ? impl.cq_->background_starting() : impl.cq_->operation_starting(op);
  operation_list none; // starting a receive ends no other operation
  if (impl.receive_.start(op, none)) {
    impl.cq_->operation_started();
    return true;
  }
  if (op.background)
    impl.cq_->background_ending();
  impl.cq_->operation_not_started(op);
  return false;
}

bool shared_receive_queue_impl::start_wait_limit(operation& op, std::uint32_t limit) {
  const std::lock_guard not_replaced(renewal_);
  const std::lock_guard lock(mutex_);
  ibv_srq_attr attr{};
  attr.srq_limit = limit;
  if (srq_ == nullptr || closing_)
    op.ec = asio::error::bad_descriptor;
  else if (reason_)
    op.ec = reason_;
  else if (const int e = ibv_modify_srq(srq_, &attr, IBV_SRQ_LIMIT))
    op.ec = system_error_code(std::abs(e));
  if (op.ec)
    return false;
  service_.operation_starting();
  limit_ = limit;
  waiters_.push_back(op);
  return true;
}

error_code shared_receive_queue_impl::attach(queue_pair_impl& qp, bool yet_to_be_made) {
  const std::lock_guard renewal(renewal_);
  {
    const std::lock_guard lock(mutex_);
    if (srq_ == nullptr || closing_)
      return asio::error::bad_descriptor;
    if (reason_)
      return reason_;
    if (attached_.size() == attached_.capacity())
      attached_.reserve(2 * attached_.size() + 8);
    {
      const std::lock_guard leaf(awaiting_mutex_);
      awaiting_.reserve(attached_.capacity());
    }
    attached_.push_back(&qp); // from here on only `detach` can destroy the queue
    if (unconfirmed_ == 0 || attached_.size() != 1 || !yet_to_be_made || adopted_ || kept_ ||
        lingering_ != 0)
      return {};
    receive_.hold();
  }
  renew();
  return {};
}

// Nothing tells which receives a destroyed queue pair had taken, unless the device has completed
// them. When all queue pairs have been destroyed, the shared receive queue is the last verbs object
// by which the device could use a receive. So a new one takes its place, and all receives that have
// not completed are posted to it. If it cannot be made, or the former one cannot be destroyed
// (EBUSY: the user has made a queue pair on it), the former one stays.
void shared_receive_queue_impl::renew() noexcept {
  // A completion of a former queue pair must not be found after its receive was posted again.
  ibv_srq* made = cq_->drain() ? make() : nullptr;
  if (made != nullptr && ibv_destroy_srq(srq_) != 0) {
    ibv_destroy_srq(made);
    made = nullptr;
  }
  operation_list ended;
  {
    const std::lock_guard lock(mutex_);
    if (made != nullptr) {
      srq_ = made;
      unconfirmed_ = 0;
      receive_.post_again();
    }
    receive_.release(ended);
    if (made != nullptr && !waiters_.empty()) {
      ibv_srq_attr attr{};
      attr.srq_limit = limit_;
      if (const int e = ibv_modify_srq(srq_, &attr, IBV_SRQ_LIMIT))
        fail_waiters(system_error_code(std::abs(e)));
    }
  }
  cq_->complete(ended);
}

// Called with the queue pair's mutex locked, which is locked after that of this queue.
void shared_receive_queue_impl::await_first(queue_pair_impl& qp, bool first) noexcept {
  const std::lock_guard leaf(awaiting_mutex_);
  const auto at = std::lower_bound(awaiting_.begin(), awaiting_.end(), qp.number(), before_number);
  if (first) {
    assert(awaiting_.size() < awaiting_.capacity());
    awaiting_.insert(at, &qp);
  } else {
    assert(at != awaiting_.end() && *at == &qp);
    awaiting_.erase(at);
  }
  awaiting_count_ = awaiting_.size();
}

queue_pair_impl* shared_receive_queue_impl::awaiting(std::uint32_t number) noexcept {
  const std::lock_guard leaf(awaiting_mutex_);
  const auto at = std::lower_bound(awaiting_.begin(), awaiting_.end(), number, before_number);
  return at != awaiting_.end() && (*at)->number() == number ? *at : nullptr;
}

// --- The other functions of shared_receive_queue_face.hpp ---------------------------------------

std::shared_ptr<shared_receive_queue_impl>
open_shared_receive_queue(asio::execution_context& context, const protection_domain& pd,
                          const shared_receive_queue_options& options,
                          std::shared_ptr<completion_queue_impl> queue, error_code& ec) {
  return make_open<shared_receive_queue_impl>(
      ec, [&](shared_receive_queue_impl& i) { return i.open(std::move(queue)); }, context, pd,
      options);
}

std::shared_ptr<shared_receive_queue_impl>
adopt_shared_receive_queue(asio::execution_context& context, const protection_domain& pd,
                           const shared_receive_queue_options& options,
                           std::shared_ptr<completion_queue_impl> queue, ibv_srq* srq,
                           error_code& ec) {
  return make_open<shared_receive_queue_impl>(
      ec, [&](shared_receive_queue_impl& i) { return i.adopt(std::move(queue), srq); }, context, pd,
      options);
}

ibv_srq* native_handle(const shared_receive_queue_impl& impl) noexcept {
  return impl.native_handle();
}
void close(shared_receive_queue_impl& impl) { impl.close(); }
void cancel(shared_receive_queue_impl& impl) { impl.cancel(); }
bool start_wait_limit(shared_receive_queue_impl& impl, operation& op, std::uint32_t limit) {
  return impl.start_wait_limit(op, limit);
}
void cancel(shared_receive_queue_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(shared_receive_queue_impl& impl) noexcept { return impl.next_id(); }

// --- The end ---------------------------------------------------------------------------------

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
