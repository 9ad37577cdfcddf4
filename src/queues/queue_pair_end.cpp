// SPDX-License-Identifier: BSL-1.0
// The end of a queue pair: failure, cancellation, close.
#include "queues/queue_pair_impl.hpp"

#include "core/logging.hpp"
#include "core/probe.hpp"
#include "queues/queue_pair_remains.hpp"
#include "queues/shared_receive_queue_impl.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/last_receive.hpp"
#include "verbs/withheld.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace asio_rdma::detail {
namespace {

// The most calls that destroy a queue pair with posted work requests, if the device refuses, and
// the time between them.
constexpr int chances = 10;
constexpr std::chrono::milliseconds between_chances(1);

// A device writes the completion of a failed request before it raises an event about it, or soon
// afterwards.
constexpr std::chrono::milliseconds longest_delay(50), between_polls(1);

bool move_to_error(ibv_qp* qp) noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0;
}

} // namespace

error_code queue_pair_impl::completion_failure(const ibv_wc& wc, operation_list& ready) {
  assert(wc.status != IBV_WC_SUCCESS);
  const bool flushed = wc.status == IBV_WC_WR_FLUSH_ERR;
  if (flushed && !has_ended() && (!event_reason_ || send_.any_posted())) {
    examine(ready);
    return asio::error::connection_reset;
  }
  enter_failed(flushed && event_reason_ ? event_reason_ : asio::error::connection_reset, ready);
  if (flushed)
    return reason_;
  if (vendor_error_ == 0)
    vendor_error_ = wc.vendor_err;
  const error_code why = completion_error(wc.status);
  ASIO_RDMA_PROBE(failure, number(), why.value(), static_cast<int>(wc.status), wc.vendor_err);
  if (logs(log_severity::error)) [[unlikely]]
    write_log({.severity = log_severity::error,
               .event = log_event::failure,
               .error = why,
               .queue_pair = number(),
               .status = wc.status,
               .vendor_error = wc.vendor_err},
              "queue pair %u: a work request failed with status %d, vendor error 0x%x", number(),
              static_cast<int>(wc.status), wc.vendor_err);
  if (!first_failure_)
    first_failure_ = why;
  return why;
}

void queue_pair_impl::shared_receive_failed(const ibv_wc& wc, operation_list& ready) {
  const std::lock_guard lock(mutex_);
  completion_failure(wc, ready);
}

// A device need not flush the work requests of a queue pair in the error state: siw does not, and
// no device does after a fatal error. Destroying the queue pair ends them for certain. The
// destruction may wait for the acknowledgement of an event, so it comes later, with no mutex
// locked.
void queue_pair_impl::enter_failed(const error_code& why, operation_list& ready) {
  assert(mutex_.is_locked() && why);
  if (has_ended())
    return;
  state_ = queue_pair_state::failed;
  reason_ = why;
  end_flushed(ready);
  if (logs(log_severity::debug)) [[unlikely]]
    write_log({.severity = log_severity::debug,
               .event = log_event::failure,
               .error = why,
               .queue_pair = number()},
              "queue pair %u has entered the state failed", number());
  for (operation& op : waiters_)
    op.fail(why);
  service_.complete(waiters_);
  send_.fail_waiting(why, ready);
  receive_.fail_waiting(why, ready);
  await_first(false);
  teardown_.queue(ready);
}

// The results are set already, except for the reason.
void queue_pair_impl::end_flushed(operation_list& ready) noexcept {
  for (operation& op : flushed_)
    op.ec = reason_;
  ready.splice(ready.end(), flushed_);
}

void queue_pair_impl::deferred_call::queue(operation_list& ready) {
  assert(qp_.mutex_.is_locked() && !self_);
  self_ = qp_.shared_from_this();
  queued_.store(true);
  qp_.cq_->operation_starting();
  ready.push_back(*this);
}

void queue_pair_impl::deferred_call::drop() {
  std::shared_ptr<context_member> keep;
  if (queued_.load() && qp_.cq_->take_back(*this)) {
    queued_.store(false);
    keep = std::move(self_);
  }
}

void queue_pair_impl::deferred_call::run(operation* base, disposal how) {
  auto& self = static_cast<deferred_call&>(*base);
  self.queued_.store(false);
  const auto keep = std::move(self.self_);
  if (how != disposal::destroy)
    (self.qp_.*self.call_)();
}

bool queue_pair_impl::any_posted() const {
  const std::lock_guard lock(mutex_);
  return has_posted();
}

bool queue_pair_impl::has_posted() const noexcept {
  assert(mutex_.is_locked());
  return send_.any_posted() || receive_.any_posted();
}

// If the queue pair may have shared receives, it is only moved to the error state, and the rest
// comes after the teardowns that are queued by now. So the device completes the receives of the
// queue pairs that end together at the same time.
void queue_pair_impl::release_failed() {
  {
    const std::lock_guard lock(mutex_);
    if (qp_ == nullptr) // `close` releases the queue pair; other internal operations go on
      return;
  }
  const std::lock_guard releasing(releasing_);
  // The shutdown of the context closes the queue pair, and then its receives are not awaited.
  const bool is_leaving = service_.is_leaving();
  const bool in_two_steps = (is_leaving || !disconnected_) && may_have_receives();
  ibv_qp* qp = nullptr;
  std::shared_ptr<connection_link> link;
  error_code why;
  {
    const std::lock_guard lock(mutex_);
    if (qp_ == nullptr)
      return;
    link = link_;
    why = reason_;
    qp = in_two_steps ? qp_ : std::exchange(qp_, nullptr);
  }
  if (!in_two_steps)
    return release_device(qp, link, why);
  disconnect(qp, link, why);
  if (is_leaving)
    return;
  operation_list rest;
  {
    const std::lock_guard lock(mutex_);
    if (qp_ != nullptr) // else `close` waits for `releasing_`, and releases the queue pair
      teardown_.queue(rest);
  }
  publish(rest);
}

void queue_pair_impl::disconnect(ibv_qp* qp, const std::shared_ptr<connection_link>& link,
                                 const error_code& why) noexcept {
  if (std::exchange(disconnected_, true))
    return;
  if (link)
    link->disconnect(why);
  in_error_ = move_to_error(qp);
  if (last_receive_)
    last_receive_->expect();
}

// Whether the receives that the queue pair has taken from a shared receive queue are awaited. They
// are not if that queue ends, too.
bool queue_pair_impl::may_have_receives() const {
  return last_receive_ && last_receive_->can_take() && !srq_->is_ending() &&
         !service_.has_stopped();
}

// After the destruction of the queue pair the device does not use its memory, and after one more
// poll the completion queue has none of its completions. Outstanding work requests will never
// complete then. If the device refuses the destruction, it may still use the memory of posted work
// requests. Allocates nothing: no later call could do the rest.
void queue_pair_impl::release_device(ibv_qp* qp, const std::shared_ptr<connection_link>& link,
                                     const error_code& why) noexcept {
  assert(qp != nullptr);
  disconnect(qp, link, why);
  // Lets the shared receives that it took complete: destroying the queue pair may drop completions
  // that were not polled.
  const bool confirmed = !may_have_receives() ||
                         (in_error_ && last_receive_->wait([this] { return may_have_receives(); }));
  cq_->drain();
  // rxe cannot free a window after its queue pair: the kernel panics.
  bool destroyed = windows_->free_all();
  if (destroyed && lingering_ && link && link->lingers() && !any_posted()) {
    lingering_->keep(qp);
    link->keep(std::move(lingering_));
  } else {
    destroyed = destroyed && destroy(qp);
  }
  cq_->drain();
  last_receive_.reset();
  if (!destroyed)
    abandon(qp);
  const error_code end = destroyed ? why : error_code(error::device_keeps_memory);
  operation_list left;
  memory_region results;
  {
    const std::lock_guard lock(mutex_);
    if (destroyed)
      results = send_.release_results();
    send_.fail_all(end, left);
    receive_.fail_all(end, left);
    if (last_ != nullptr) {
      last_->fail(end);
      left.push_back(*std::exchange(last_, nullptr));
    }
  }
  if (destroyed)
    cq_->unreserve(reserved_);
  cq_->complete(left);
  if (srq_)
    srq_->detach(*this, destroyed, confirmed);
  if (destroyed)
    release_withheld(); // other withheld objects may be releasable now, too
}

bool queue_pair_impl::destroy(ibv_qp* qp) noexcept {
  for (int left = chances; end_use(cq_->get_device(), &ibv_destroy_qp, qp) != 0; --left) {
    cq_->drain();
    if (left == 0 || !any_posted())
      return false;
    std::this_thread::sleep_for(between_chances);
  }
  return true;
}

void queue_pair_impl::abandon(ibv_qp* qp) noexcept {
  assert(refused_ != nullptr);
  refused_->keep(std::static_pointer_cast<queue_pair_impl>(shared_from_this()), qp);
  {
    const std::lock_guard lock(mutex_);
    find_posted_blocks<send_operation>(send_, refused_->memory);
    find_posted_blocks<receive_operation>(receive_, refused_->memory);
  }
  withhold(std::move(refused_));
}

// If a failure and `close` run concurrently, the later one drops the teardown.
void queue_pair_impl::publish(operation_list& ready) {
  cq_->complete(ready);
  if (state_ == queue_pair_state::closed)
    drop_calls();
}

void queue_pair_impl::drop_calls() {
  first_receive_.drop();
  examination_.drop();
  teardown_.drop();
}

// The end of a connection does not tell its cause. An event of the device may: siw's connection
// manager reports the end after that event was raised (siw_qp_rx.c).
void queue_pair_impl::fail(const error_code& why) {
  const bool is_unexplained = why == asio::error::connection_reset;
  if (is_unexplained && !has_ended())
    read_device_events();
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    if (is_unexplained && event_reason_)
      return; // the examination ends the queue pair, unless it has ended
    enter_failed(why, ready);
  }
  publish(ready);
}

// Reads the events that the device has raised by now, and reports them to their objects, this one
// among them. Does not block.
void queue_pair_impl::read_device_events() noexcept {
  const device& d = pd_.get_device();
  while (d.listeners().read(d.native_handle()))
    continue;
}

// After an event about the verbs object `only`. Adapters also raise an event if a request of this
// side has failed, and the event does not tell the cause: bnxt_re raises IBV_EVENT_QP_ACCESS_ERR
// and irdma IBV_EVENT_QP_FATAL if all retries of a request were in vain (bnxt_re/main.c,
// irdma/hw.c). So `why` is used only if no completion tells the cause. A flushed receive tells
// nothing of the sends, which are flushed on their own. `all_written`: no completion follows the
// event. siw does not flush.
void queue_pair_impl::fail_after_event(const error_code& why, const ibv_qp* only,
                                       bool all_written) {
  const bool flushes = pd_.get_device().attributes().vendor_id != siw_vendor;
  cq_->drain();
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    if (only != qp_ || has_ended())
      return;
    if (!event_reason_) {
      event_reason_ = why;
      examined_until_ = std::chrono::steady_clock::now() + longest_delay;
    }
    const bool told = !flushed_.empty() && !send_.any_posted();
    if (all_written || !flushes || told || !has_posted())
      enter_failed(event_reason_, ready);
    else
      examine(ready);
  }
  publish(ready);
}

// Nothing is posted to a queue pair that is in the error state: siw would refuse it with an error
// of its own. The operations that wait get the reason of the end.
void queue_pair_impl::examine(operation_list& ready) {
  assert(mutex_.is_locked() && !has_ended());
  if (std::exchange(is_examined_, true))
    return;
  send_.hold();
  receive_.hold();
  examination_.queue(ready);
}

// If work requests were flushed, the device has raised the event that tells the cause, if any. If
// an event was read, waits for the completion that tells why the queue pair has failed. The device
// flushes the posted work requests behind it, unless the event was a fatal error. The time counts
// from the event, so queue pairs that fail together wait together.
void queue_pair_impl::examine_failure() {
  read_device_events();
  operation_list ready;
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    cq_->drain();
    {
      const std::lock_guard lock(mutex_);
      if (has_ended())
        return;
      if (!event_reason_ || now >= examined_until_ || !has_posted()) {
        enter_failed(event_reason_ ? event_reason_ : asio::error::connection_reset, ready);
        break;
      }
    }
    std::this_thread::sleep_for(between_polls);
  }
  publish(ready);
}

void queue_pair_impl::cancel() {
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    const error_code aborted = asio::error::operation_aborted;
    send_.fail_waiting(aborted, ready);
    receive_.fail_waiting(aborted, ready);
    for (operation& op : waiters_)
      op.fail(aborted);
    service_.complete(waiters_);
    if (has_posted())
      enter_failed(aborted, ready);
  }
  publish(ready);
}

void queue_pair_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  const error_code aborted = asio::error::operation_aborted;
  operation_list ready, done;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    operation* op = send_.remove_waiting(id);
    if (op == nullptr)
      op = receive_.remove_waiting(id);
    const auto waiter = std::find_if(waiters_.begin(), waiters_.end(),
                                     [id](const operation& o) { return o.id == id; });
    if (op != nullptr) {
      op->fail(aborted);
      ready.push_back(*op);
    } else if (waiter != waiters_.end()) {
      waiter->fail(aborted);
      done.splice(done.end(), waiters_, waiter);
    } else if ((type & asio::cancellation_type::terminal) != asio::cancellation_type::none &&
               (send_.is_posted(id) || send_.is_waiting(id) || receive_.is_posted(id))) {
      enter_failed(aborted, ready);
    }
  }
  publish(ready);
  service_.complete(done);
}

bool queue_pair_impl::withdraw(std::uint64_t id) {
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    operation* const op = send_.remove_waiting(id);
    if (op == nullptr)
      return false;
    op->fail(asio::error::operation_aborted);
    ready.push_back(*op);
  }
  cq_->complete(ready);
  return true;
}

bool queue_pair_impl::is_waiting(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return send_.is_waiting(id);
}

// When this returns, the device no longer uses the queue pair. If another thread runs the teardown,
// this waits for it. The teardown calls no function of the application, except that it destroys
// handlers when the context ends. The destructor of such a handler may call `close` on the same
// thread.
void queue_pair_impl::close() {
  operation_list left, waiters;
  ibv_qp* qp = nullptr;
  std::shared_ptr<connection_link> link;
  const error_code aborted = asio::error::operation_aborted;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    state_ = queue_pair_state::closed;
    reason_ = aborted;
    end_flushed(left);
    send_.fail_waiting(aborted, left);
    receive_.fail_waiting(aborted, left);
    for (operation& op : waiters_)
      op.fail(aborted);
    waiters.swap(waiters_);
    await_first(false);
    qp = std::exchange(qp_, nullptr);
    link = std::move(link_);
  }
  service_.remove(*this);
  cq_->complete(left);
  service_.complete(waiters);
  {
    const std::lock_guard releasing(releasing_);
    if (qp != nullptr) // else the teardown has ended the posted work requests
      release_device(qp, link, aborted);
  }
  drop_calls();
}

void queue_pair_impl::on_device_event(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
  case IBV_EVENT_QP_FATAL:
    fail_after_event(error::queue_pair_fatal, event.element.qp);
    break;
  // The peer's fault, if no request of this side has failed: InfiniBand specification, 11.6.3.1.
  // siw: siw_qp_rx.c, and siw_qp_tx.c, where a READ of the peer's cannot be answered.
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    fail_after_event(error::peer_access_refused, event.element.qp);
    break;
  case IBV_EVENT_QP_LAST_WQE_REACHED: // with shared receives, the only report of the error state
    fail_after_event(asio::error::connection_reset, event.element.qp, true);
    break;
  case IBV_EVENT_DEVICE_FATAL:
    fail(fatal_error(pd_.get_device()));
    break;
  case IBV_EVENT_CQ_ERR:
    if (event.element.cq == cq_->native_handle())
      fail(fatal_error(pd_.get_device(), error::queue_pair_fatal));
    break;
  default:
    break;
  }
}

} // namespace asio_rdma::detail
