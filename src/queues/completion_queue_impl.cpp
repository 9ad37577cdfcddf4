// SPDX-License-Identifier: BSL-1.0
#include "queues/completion_queue_impl.hpp"

#include "core/device_files.hpp"
#include "queues/completion_queue_watch.hpp"
#include "queues/completion_service.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <fcntl.h>
#include <new>
#include <unistd.h>
#include <utility>

namespace asio_rdma::detail {
namespace {

// Acknowledging takes a lock (ibv_ack_cq_events(3)), so events are acknowledged in groups.
constexpr unsigned acknowledge_batch = 64;

} // namespace

completion_queue_impl::completion_queue_impl(completion_service& service, const device& d,
                                             const completion_queue_options& options)
    : service_(service),
      open_queues_(service.all_queues()),
      context_(service.context()),
      device_(d),
      options_(options),
      watch_(std::make_unique<watch>(*this)) {
  if (watch_->places.empty())
    biased_mutex::prepare();
}

completion_queue_impl::completion_queue_impl(completion_service& service, const device& d,
                                             const completion_queue_options& options,
                                             error_code& ec)
    : completion_queue_impl(service, d, options) {
  ec.clear();
  options_.entries =
      std::min(options.entries, static_cast<std::uint32_t>(std::max(d.attributes().max_cqe, 1)));
  if (options_.mode != completion_mode::manual) {
    channel_ = ibv_create_comp_channel(d.native_handle());
    if (channel_ == nullptr) {
      ec = creation_error();
      return;
    }
  }
  const auto& chosen = options_.completion_vector;
  cq_ = ibv_create_cq(d.native_handle(), static_cast<int>(options_.entries), this, channel_,
                      chosen ? *chosen : d.next_completion_vector());
  if (cq_ == nullptr) {
    ec = creation_error();
    return;
  }
  open_watch(ec);
}

completion_queue_impl::completion_queue_impl(completion_service& service, const device& d,
                                             const completion_queue_options& options, ibv_cq* cq,
                                             error_code& ec)
    : completion_queue_impl(service, d, options) {
  ec.clear();
  channel_ = cq->channel;
  cq_ = cq;
  owns_ = ownership::borrow;
  options_.entries = static_cast<std::uint32_t>(std::max(cq->cqe, 0));
  if (channel_ == nullptr && options_.mode != completion_mode::busy)
    options_.mode = completion_mode::manual;
  open_watch(ec);
}

void completion_queue_impl::open_watch(error_code& ec) {
  if (!open_queues_->add(*this)) {
    ec = asio::error::bad_descriptor;
    return;
  }
  if (options_.mode == completion_mode::manual || channel_ == nullptr)
    return;
  // The runner reads only if an event was announced, but another thread may have read the event.
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  if (const int e = watch_->channel.start(context_, channel_->fd))
    ec = system_error_code(e);
  else
    watched_ = true;
}

bool open_queues::add(completion_queue_impl& q) {
  const std::lock_guard lock(mutex_);
  if (!closed_)
    all_.push_back(&q);
  return !closed_;
}

template <class Function>
void open_queues::remove(completion_queue_impl& q, Function&& f) {
  const std::lock_guard lock(mutex_);
  if (std::erase(all_, &q) != 0)
    f();
}

void open_queues::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const completion_queue_impl* q : std::exchange(all_, {}))
    q->watch_->channel.stop();
}

completion_queue_impl::~completion_queue_impl() {
  end_round(false);
  open_queues_->remove(*this, [this] {
    watch_->channel.stop();
    // Mode `manual`: no thread can poll any more.
    if (const std::size_t left = ready_.size(); left != 0) {
      for (std::size_t i = 0; i < left; ++i)
        service_.operation_starting();
      operations_done(left);
      service_.complete(ready_);
    }
  });
  drop(ready_); // the context has shut down
  if (cq_ == nullptr) {
    if (channel_ != nullptr)
      ibv_destroy_comp_channel(channel_);
    return;
  }
  if (watched_) {
    read_event();
    ibv_ack_cq_events(cq_, unacknowledged_events_);
  }
  if (owns_ == ownership::borrow)
    return;
  ibv_destroy_cq(cq_);
  // A removed device refuses to destroy the queue, and so the channel: only its descriptor is
  // freed.
  if (channel_ != nullptr && ibv_destroy_comp_channel(channel_) != 0 && device_.is_removed())
    ::close(channel_->fd);
}

completion_counters completion_queue_impl::counters() const noexcept {
  return {polls_.value(), arms_.value(), events_.value(), completions_.value()};
}

bool completion_queue_impl::reserve(std::uint32_t entries) noexcept {
  std::uint32_t before = reserved_.load();
  do
    if (lost_.load() || entries > options_.entries - before)
      return false;
  while (!reserved_.compare_exchange_weak(before, before + entries));
  return true;
}

void completion_queue_impl::unreserve(std::uint32_t entries) noexcept {
  [[maybe_unused]] const std::uint32_t before = reserved_.fetch_sub(entries);
  assert(before >= entries);
}

// Returns false if the device was removed. Spurious events would accumulate. To look for them costs
// a system call, so it is done as often as events are acknowledged.
bool completion_queue_impl::read_event() {
  assert(channel_ != nullptr);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  bool all = false;
  do {
    errno = 0;
    if (ibv_get_cq_event(channel_, &cq, &context) != 0)
      return errno != EIO;
    events_.add();
    if (++unacknowledged_events_ == acknowledge_batch) {
      ibv_ack_cq_events(cq_, unacknowledged_events_);
      unacknowledged_events_ = 0;
      all = true;
    }
  } while (all);
  return true;
}

// The device has lost the queue and may not report an event, so objects that use the queue end as
// after such an event. If there is no memory to notify them, the runner polls again.
void completion_queue_impl::on_loss() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || lost_.exchange(true))
      return;
  }
  try {
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = cq_;
    service_.broadcast(device_, event);
  } catch (const std::bad_alloc&) {
    lost_.store(false);
    queue_runner();
  }
}

// The operations of abandoned work requests no longer exist.
int completion_queue_impl::drop_abandoned(ibv_wc* completions, int n) const noexcept {
  assert(mutex_.is_locked());
  const auto is_abandoned = [this](const ibv_wc& wc) {
    return std::any_of(abandoned_.begin(), abandoned_.end(),
                       [&wc](const auto& q) { return q.number == wc.qp_num; });
  };
  return static_cast<int>(std::remove_if(completions, completions + n, is_abandoned) - completions);
}

void completion_queue_impl::abandon(abandoned_queue_pair& q) noexcept {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(q);
}

void completion_queue_impl::forget(abandoned_queue_pair& q) noexcept {
  const std::lock_guard lock(mutex_);
  abandoned_.erase(decltype(abandoned_)::s_iterator_to(q));
}

bool completion_queue_impl::drain() noexcept {
  int found = 0;
  do {
    const std::lock_guard lock(mutex_);
    found = take_completions(1);
  } while (found > 0);
  if (found < 0)
    on_loss();
  return found == 0;
}

void completion_queue_impl::complete(operation_list& done) {
  if (collect(done))
    return;
  operation_list dropped;
  {
    const std::lock_guard lock(mutex_);
    ready_.splice(ready_.end(), done);
    ready_changed();
    if (ready_.empty())
      return;
    if (!stopped_)
      return attend_to_ready(); // under the mutex: until the queue is stopped, the context exists
    dropped.swap(ready_);
    ready_changed();
  }
  drop(dropped);
}

// The handlers of a context that has shut down are not called.
void completion_queue_impl::drop(operation_list& dropped) noexcept {
  while (!dropped.empty()) {
    operation& op = dropped.front();
    dropped.pop_front();
    outstanding_.fetch_sub(1);
    op.dispose(disposal::destroy);
  }
}

bool completion_queue_impl::take_back(const operation& op) {
  {
    const std::lock_guard lock(mutex_);
    const auto take_from = [&op](operation_list& list) {
      const auto found =
          std::find_if(list.begin(), list.end(), [&op](const operation& o) { return &o == &op; });
      if (found == list.end())
        return false;
      list.erase(found);
      return true;
    };
    if (!take_from(ready_) && !take_from(next_))
      return false;
    ready_changed();
  }
  operations_done(1);
  return true;
}

void completion_queue_impl::postpone(operation& op) {
  assert(op.internal);
  op.value = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      postponed_.push_back(op);
      has_postponed_.store(true, std::memory_order_relaxed);
      return attend_to_ready();
    }
  }
  outstanding_.fetch_sub(1);
  op.dispose(disposal::destroy);
}

const tally* completion_queue_impl::rounds() const noexcept {
  return watch_->places.empty() ? &rounds_ : nullptr;
}

// Called with the mutex locked, or by the destructor.
void completion_queue_impl::end_round(bool quiet) noexcept {
  rounds_.add();
  if (!has_postponed_.load(std::memory_order_relaxed)) [[likely]]
    return;
  for (operation_list* const list : {&postponed_before_, &postponed_}) {
    for (operation& op : *list)
      op.value = quiet ? 1 : 0;
    ready_.splice(ready_.end(), *list);
  }
  ready_changed();
  has_postponed_.store(false, std::memory_order_relaxed);
}

// Ends the round if nothing is ready. If several threads may run the context, its end is not known.
bool completion_queue_impl::end_quiet_round() noexcept {
  assert(mutex_.is_locked());
  if (!ready_.empty() || !watch_->places.empty()) [[unlikely]]
    return false;
  end_round(true);
  return true;
}

// Called with the mutex locked.
void completion_queue_impl::begin_pass() noexcept {
  if (end_quiet_round()) [[likely]]
    return;
  ready_.splice(ready_.end(), postponed_before_);
  postponed_before_.splice(postponed_before_.end(), postponed_);
  has_postponed_.store(!postponed_before_.empty(), std::memory_order_relaxed);
  ready_changed(); // so that the pass polls once only
}

void completion_queue_impl::shutdown() {
  self_.reset();
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (watch::handed_out& place : watch_->places)
      if (operation* const op = place.op.exchange(nullptr))
        ready_.push_back(*op);
    ready_.splice(ready_.begin(), next_);
    end_round(false);
  }
  operation_list none;
  complete(none);
}

} // namespace asio_rdma::detail
