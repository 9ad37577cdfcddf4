// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "core/background_timer.hpp"
#include "core/logging.hpp"
#include "core/probe.hpp"
#include "link/link_session.hpp"
#include "link/shared_receives_impl.hpp"
#include "memory/memory_pool_impl.hpp"
#include "verbs/grant_key.hpp"
#include "verbs/withheld.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

link_impl::link_impl(link_session& session, asio::execution_context& context,
                     const memory_pool& pool, handshake::kind kind, const link_options& options)
    : session_(session),
      service_(completion_service::of(context)),
      pool_(options.own_domain ? pool.in_own_domain(without_domain_) : pool),
      kind_(kind),
      options_(options) {
  queue_pair_options qp = options.queue_pair;
  qp.max_receive_sge = 1;
  qp.max_send_sge = std::max(qp.max_send_sge, 1 + frame_transfer::max_views);
  qp.receive_depth = options.receives;
  qp_ = std::make_shared<queue_pair_impl>(context, pool_.get_protection_domain(), qp);
  receives_ = std::make_unique<own_source>(*this);
}

link_impl::~link_impl() = default;

std::shared_ptr<link_impl> link_impl::reference() { return {session_.shared_from_this(), this}; }

// --- Driving ---------------------------------------------------------------------------------

error_code link_impl::check() const {
  if (failing())
    return reason_ == asio::error::eof ? error_code(asio::error::broken_pipe) : reason_;
  return state_ == state::connected ? error_code() : error_code(asio::error::not_connected);
}

link_statistics link_impl::statistics() const noexcept {
  link_statistics result;
  result.frames_sent = frames_sent_.value();
  result.frames_received = frames_received_.value();
  result.bytes_sent = bytes_sent_.value();
  result.bytes_received = bytes_received_.value();
  result.credit_waits = credit_waits_.value();
  result.registrations = registrations_.value();
  const std::uint64_t ended = requests_ended_.value(); // read first: not more than were started
  result.requests_in_flight = requests_started_.value() - ended;
  result.credits = credits_.load(std::memory_order_relaxed);
  result.queue = cq_->counters();
  return result;
}

link_latencies link_impl::latencies() const noexcept {
  link_latencies result;
  const latencies_measured* const measured = latency_.load(std::memory_order_acquire);
  if (measured == nullptr)
    return result;
  const auto copy = [](const latency_tally& from, latency_statistics& to) {
    static_assert(latency_statistics::classes == latency_tally::classes);
    to.last = std::chrono::nanoseconds(from.last());
    to.sum = std::chrono::nanoseconds(from.sum());
    for (std::size_t i = 0; i < to.counts.size(); ++i)
      to.counts[i] = from.count(i);
  };
  copy(measured->sends, result.sends);
  copy(measured->remote, result.remote);
  return result;
}

void link_impl::measure_latency() {
  const auto guard = lock();
  if (!own_latency_)
    own_latency_ = std::make_unique<latencies_measured>();
  latency_.store(own_latency_.get(), std::memory_order_release);
}

void link_impl::run(operation_list& done) noexcept {
  assert(is_locked());
  if (state_ == state::connected) [[likely]] {
    if (frames_)
      do_or_fail([&] {
        receives_->take();
        if (has_news()) // otherwise the visit costs little
          drive(done);
        credits_.store(frames_->flow().available(), std::memory_order_relaxed);
      });
    if (state_ == state::connected)
      return;
  }
  if (state_ == state::failing && posted_ == 0)
    stop(done);
  if (state_ == state::stopped && closing_ != nullptr) {
    // After both goodbyes, the peer may destroy its queue pair before this side's goodbye
    // completes. That is no error.
    closing_->ec = frames_->said_goodbye() ? error_code() : reason_;
    done.push_back(*std::exchange(closing_, nullptr));
  }
}

// The driver leaves no action of the parts undone, so they are asked only if it does not run. Their
// actions, or a failure of them, may need the link again.
void link_impl::advance(operation_list& done) noexcept {
  run(done);
  if (state_ == state::connected && frames_)
    return;
  bool again = true;
  do_or_fail([&] {
    bool any = false;
    while (session_.run_parts(done))
      any = true;
    again = any;
  });
  if (again)
    run(done);
}

void link_impl::lack_memory() noexcept {
  fail(asio::error::no_memory);
  if (frames_)
    frames_->fail(asio::error::no_memory);
}

void link_impl::drive(operation_list& done) {
  assert(frames_ && state_ == state::connected);
  bool parts_ran = false; // since the last action of the link
  for (bool more = true; more && !failing();) {
    if (!frames_->failure())
      while (const auto slot = frames_->next_freed()) // as `next` would report them
        receives_->free(*slot);
    const link_action a = frames_->has_news() ? frames_->next() : link_action();
    parts_ran = parts_ran && a.what == link_action::kind::none;
    switch (a.what) {
    case link_action::kind::repost:
      receives_->free(a.slot);
      break;
    case link_action::kind::send:
      send(a.slot, *a.frame);
      break;
    case link_action::kind::grow:
      receives_->grow(a.size) ? frames_->grown() : frames_->not_grown();
      break;
    case link_action::kind::fail:
      fail(a.ec);
      break;
    case link_action::kind::closed:
      session_.run_parts(done); // what the goodbyes end
      fail(asio::error::eof);
      break;
    case link_action::kind::none: // a part may have got an action though it had no frame
      more = (frames_->may_act() || (session_watches_ && !parts_ran)) && session_.run_parts(done);
      parts_ran = true;
    }
  }
  if (frames_->credit_waits() != credit_waits_.value() || waits_since_) [[unlikely]]
    note_credit_waits();
}

// The timer reports a wait that does not end.
void link_impl::note_credit_waits() noexcept {
  const std::uint64_t waits = frames_->credit_waits();
  const bool another = waits != credit_waits_.value();
  if (waits_since_ && (another || !frames_->data_waits())) {
    const auto lasted = protocol_clock::now() - *waits_since_;
    waits_since_.reset();
    if (lasted >= longest_unlogged_wait())
      log_wait(lasted, true);
  }
  if (another) {
    credit_waits_.add(waits - credit_waits_.value());
    ASIO_RDMA_PROBE(credit_wait, qp_->number(), waits);
    if (logs(log_severity::warning)) [[unlikely]] {
      const auto now = protocol_clock::now();
      waits_since_ = now;
      try {
        call_at(timer::wait, now + longest_unlogged_wait(), [this] {
          if (waits_since_ && frames_ && frames_->data_waits())
            log_wait(protocol_clock::now() - *waits_since_, false);
        });
      } catch (const std::bad_alloc&) {
        // The end of the wait is logged.
      }
    }
  }
}

void link_impl::log_wait(protocol_clock::duration so_far, bool ended) const noexcept {
  if (!logs(log_severity::warning))
    return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(so_far).count();
  write_log(
      {.severity = log_severity::warning, .event = log_event::wait, .queue_pair = qp_->number()},
      ended ? "data for %s has waited %lld ms until the peer took earlier data"
            : "data for %s has waited %lld ms and still waits: the peer takes no data",
      endpoint_text(peer()).c_str(), static_cast<long long>(ms));
}

// An end that this side or both sides wanted is normal.
void link_impl::log_end() const noexcept {
  const bool wanted = reason_ == asio::error::operation_aborted || reason_ == asio::error::eof;
  const log_severity s = !knows_endpoint_ && wanted ? log_severity::debug
                         : wanted                   ? log_severity::info
                                                    : log_severity::warning;
  if (logs(s)) [[unlikely]]
    write_log(
        {.severity = s, .event = log_event::end, .error = reason_, .queue_pair = qp_->number()},
        "the %s with %s has ended", kind_ == handshake::kind::stream ? "stream" : "connection",
        endpoint_text(peer()).c_str());
}

// To end their operations, the parts allocate nothing. Each call of run_parts takes its next step
// from a list, so a step that fails is not repeated, and the steps behind it are done.
void link_impl::stop(operation_list& done) {
  assert(state_ == state::failing && posted_ == 0);
  state_ = state::stopped;
  if (!frames_)
    return;
  // If the device still uses memory, report that first: the caller must not reuse the memory.
  frames_->stop(kept_ ? error_code(error::device_keeps_memory) : reason_);
  for (bool more = true; more;)
    do_or_fail([&] { more = session_.run_parts(done); });
}

// Once the mutex is unlocked, only locals are used. An operation that was started may have ended on
// another thread and released the last reference to the link.
void link_impl::settle(operation_list& done) noexcept {
  assert(is_locked());
  post_gathered();
  const bool visits = idle_ == idle_state::due;
  if (visits)
    idle_ = idle_state::postponed;
  if (failing() || posted_ == 0 || !dropped_.empty() || receives_->is_waited_for()) [[unlikely]]
    return settle_rest(done, visits);
  cq_->operation_started();
  if ((done.empty() || cq_->collect(done)) && !visits) [[likely]]
    return mutex_.unlock();
  const auto cq = cq_;
  mutex_.unlock();
  if (!done.empty())
    cq->complete(done);
  if (visits)
    cq->postpone(idle_visit_); // the visit keeps the link alive
}

// Settles what few visits have to.
void link_impl::settle_rest(operation_list& done, bool visits) noexcept {
  if (removed_ && state_ == state::stopped && posted_ == 0 && !kept_)
    drop_memory();
  const dropped_blocks dropped(std::move(dropped_));
  std::shared_ptr<context_member> last;
  std::shared_ptr<queue_pair_impl> failed;
  if (state_ == state::stopped && frames_)
    while (const auto slot = frames_->next_freed())
      receives_->free(*slot);
  const std::shared_ptr<shared_receives_impl> shared = receives_->waited_for();
  if (posted_ == 0)
    last = std::move(self_);
  if (failing() && !std::exchange(failure_reported_, true))
    failed = qp_;
  const auto cq = cq_;
  const error_code why = reason_;
  cq_->operation_started();
  mutex_.unlock();
  if (failed)
    failed->fail(why);
  if (!done.empty())
    cq->complete(done);
  if (visits)
    cq->postpone(idle_visit_);
  if (shared)
    shared->wake();
}

void link_impl::fail(const error_code& why) {
  assert(is_locked() && why);
  kept_ = kept_ || why == error::device_keeps_memory;
  if (failing())
    return;
  state_ = state::failing;
  reason_ = why;
  // The completion of the work request that failed may still wait behind others, whose receives
  // cannot be posted again. An event of the device does not tell the cause, either.
  if (why == asio::error::connection_reset || why == error::queue_pair_fatal ||
      why == error::peer_access_refused)
    if (const error_code failure = qp_->first_failure())
      reason_ = failure;
  log_end();
  for (operation& op : waiters_)
    op.fail(reason_);
  service_.complete(waiters_);
}

void link_impl::on_receive(link_receive& r, disposal how) {
  if (how == disposal::destroy)
    r.fail(asio::error::operation_aborted);
  else
    cq_->background_ending();
  returned(how, [&](operation_list&) {
    saw_sign();
    if (r.ec)
      fail(r.ec);
    else
      take_frame(r);
  });
}

// Returns false if the link does not keep the receive.
bool link_impl::take_frame(const frame_receive& r) {
  assert(is_locked());
  if (!frames_)
    return false;
  frames_received_.add();
  const bool kept = frames_->on_received(r.slot, r.arrived());
  if (std::exchange(holding_, false)) {
    qp_->release();
    qp_->report_heard();
  }
  return kept;
}

registered_buffer link_impl::take_received(std::uint32_t slot, std::size_t at,
                                           std::size_t bytes) noexcept {
  constexpr std::size_t much = std::size_t(1) << 14;
  assert(is_locked());
  frame_receive& r = receives_->receive(slot);
  const registered_buffer& memory = r.memory;
  if (memory.size() > much && bytes < memory.size() / 4) {
    error_code ec;
    registered_buffer result = pool_.allocate(bytes, ec); // empty for no bytes
    if (!ec) {
      std::copy_n(static_cast<const std::byte*>(memory.data()) + at, bytes,
                  static_cast<std::byte*>(result.data()));
      return result;
    }
  }
  r.kept = true;
  return memory.slice(at, bytes);
}

// A pool does not report freed memory, and the peer may be waiting, so this polls.
void link_impl::look_for_memory() {
  constexpr std::chrono::milliseconds pause(10);
  if (failing())
    return;
  call_at(timer::memory, protocol_clock::now() + pause, [this] {
    if (receives_->starved())
      look_for_memory(); // in case `run`, which follows, finds no memory
  });
}

bool link_impl::is_usable(const registered_buffer& memory) const noexcept {
  const memory_region* const region = memory.region();
  return region == nullptr ||
         region->native_handle()->pd == pool_.get_protection_domain().native_handle();
}

void link_impl::call_at(timer which, protocol_clock::time_point when, std::function<void()> then) {
  assert(is_locked());
  if (removed_)
    return;
  auto& t = timers_[static_cast<std::size_t>(which)];
  if (!t)
    t = std::make_unique<background_timer>(context());
  t->set(when, [this, weak = session_.weak_from_this(), &t, then = std::move(then)] {
    const auto self = weak.lock();
    if (!self)
      return;
    // First process completions, because the runner may be blocked in a handler: `then` judges by
    // what has arrived. The second time, those that the first ones have made ready, such as what
    // was flushed.
    if (cq_->run_ready_internal())
      cq_->run_ready_internal();
    visit now(*this);
    if (!t) // the link was closed in the meantime
      return;
    t->ran_out();
    do_or_fail(then);
    now.run();
  });
}

// --- Ending ----------------------------------------------------------------------------------

void link_impl::close() {
  if (!removed_.exchange(true))
    service_.remove(session_);
  end_queue_pair();
}

// The services are about to be destroyed, so the link does not leave them.
void link_impl::on_context_shutdown() {
  removed_ = true;
  end_queue_pair();
}

// A closed link may outlive its context. A timer must not: its destructor uses a service.
void link_impl::end_queue_pair() {
  {
    timers ended; // destroyed after the mutex is unlocked
    const std::lock_guard guard(mutex_);
    ended.swap(timers_);
    fail(asio::error::operation_aborted);
    failure_reported_ = true;
  }
  qp_->close();
  visit(*this).run();
}

bool link_impl::start_wait(operation& op) {
  const auto guard = lock();
  op.ec = reason_;
  if (op.ec)
    return false;
  service_.operation_starting();
  waiters_.push_back(op);
  return true;
}

bool link_impl::cancel_wait(std::uint64_t id) {
  operation_list done;
  const auto guard = lock();
  const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                  [id](const operation& op) { return op.id == id; });
  if (found == waiters_.end())
    return false;
  found->fail(asio::error::operation_aborted);
  done.splice(done.end(), waiters_, found);
  service_.complete(done);
  return true;
}

void link_impl::end(const error_code& why) {
  visit v(*this);
  fail(why);
  v.run();
}

bool link_impl::is_alive() const {
  const auto guard = lock();
  return !failing();
}

// The application may keep a closed link, so its memory is released here.
void link_impl::drop_memory() {
  dropped_.drop(send_memory_);
  receives_->drop_memory(dropped_);
}

bool link_impl::start_close(operation& op) {
  visit v(*this);
  // After both goodbyes, the end of the queue pair may still be outstanding: wait for it.
  const bool goodbye = frames_ && frames_->said_goodbye();
  const bool over = state_ == state::stopped && goodbye;
  op.ec = goodbye ? error_code() : check();
  if (!op.ec && closing_ != nullptr)
    op.ec = asio::error::already_started;
  if (op.ec || over)
    return false;
  operation_starting(op);
  closing_ = &op;
  if (!goodbye)
    do_or_fail([this] { frames_->close(); });
  v.run();
  return true;
}

bool link_impl::cancel_close(std::uint64_t id, asio::cancellation_type_t type) {
  visit v(*this);
  if (closing_ == nullptr || closing_->id != id)
    return false;
  if (!may_leave_effects(type)) // the goodbye is on its way
    return true;
  closing_->fail(asio::error::operation_aborted);
  v.done.push_back(*std::exchange(closing_, nullptr));
  v.changed();
  return true;
}

} // namespace asio_rdma::detail
