// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "core/background_timer.hpp"
#include "link/link_impl.hpp"
#include "link/shared_receives_impl.hpp"
#include "memory/memory_pool_impl.hpp"
#include "verbs/grant_key.hpp"
#include "verbs/withheld.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

// --- Work requests ---------------------------------------------------------------------------

link_transfer::link_transfer(link_impl& link, done_function done) noexcept
    : send_operation(&link_transfer::run), link_(link), done_(done) {
  wr.sg_list = elements.data();
  wr.num_sge = 0;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = 0;
  usual = false;
  inline_bytes = never_inline;
  internal = true;
}

void link_transfer::run(operation* base, disposal how) {
  auto& self = static_cast<link_transfer&>(*base);
  self.link_.on_transfer(self, how);
}

frame_transfer::frame_transfer(link_impl& link, std::uint32_t slot, std::byte* place) noexcept
    : link_transfer(link, &frame_transfer::on_done), slot_(slot), place_(place) {}

void frame_transfer::copy(const void* data, std::size_t n) noexcept {
  assert(elements[0].length + n <= room);
  if (n == 0)
    return;
  std::memcpy(place_ + elements[0].length, data, n);
  elements[0].length += static_cast<std::uint32_t>(n);
}

void frame_transfer::add(const ibv_sge& element) noexcept {
  assert(static_cast<std::size_t>(wr.num_sge) < elements.size() || element.length == 0);
  if (element.length != 0)
    elements[static_cast<std::size_t>(wr.num_sge++)] = element;
}

void frame_transfer::on_done(link_impl& link, link_transfer& t, operation_list&) {
  if (!t.ec)
    link.link_->on_sent(static_cast<frame_transfer&>(t).slot_);
}

// --- Opening and connecting ------------------------------------------------------------------

link_impl::link_impl(asio::execution_context& context, const memory_pool& pool,
                     handshake::kind kind, const link_options& options)
    : service_(completion_service::of(context)), pool_(pool), kind_(kind), options_(options) {
  queue_pair_options qp = options.queue_pair;
  qp.max_receive_sge = 1;
  qp.max_send_sge = std::max<std::uint32_t>(qp.max_send_sge, 4);
  qp.receive_depth = options.receives;
  qp_ = std::make_shared<queue_pair_impl>(context, pool.get_protection_domain(), qp);
  receives_ = std::make_unique<own_source>(*this);
}

link_impl::~link_impl() = default;

error_code link_impl::open(std::shared_ptr<completion_queue_impl> queue) {
  return options_.receives < credits::minimum ? asio::error::invalid_argument
                                              : open_with(std::move(queue));
}

error_code link_impl::open(const std::shared_ptr<shared_receives_impl>& shared) {
  options_.receives = std::max(options_.receives, shared->options().per_link);
  options_.receive_size = shared->options().receive_size;
  std::unique_ptr<shared_source> owned(new (std::nothrow) shared_source(*this, shared));
  if (!owned)
    return asio::error::no_memory;
  shared_source& share = *owned;
  if (const error_code ec = share.join())
    return ec;
  receives_ = std::move(owned);
  const error_code ec = open_with(nullptr);
  if (ec)
    share.leave();
  return ec;
}

error_code link_impl::open_with(std::shared_ptr<completion_queue_impl> queue) {
  if (options_.receive_size < frame_link::min_receive_size || options_.sends == 0 ||
      options_.queue_pair.type != IBV_QPT_RC)
    return asio::error::invalid_argument;
  // The peer fits its frames to this size, so this limits them to `most_payload`.
  options_.receive_size = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(options_.most_payload,
                                frame_link::min_receive_size - frame_header::size,
                                options_.receive_size - frame_header::size) +
      frame_header::size);
  error_code ec;
  bool opened = false, added = false;
  try {
    ec = qp_->open(std::move(queue), receives_->queue());
    opened = !ec;
    if (opened) {
      cq_ = qp_->completion_queue();
      cq_->expect_internal();
      added = service_.add(*this, ec);
    }
    if (!ec)
      ec = make_work_requests();
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  if (ec && added)
    close();
  else if (ec && opened)
    qp_->close();
  return ec;
}

error_code link_impl::make_work_requests() {
  error_code ec;
  send_memory_ = pool_.allocate(options_.sends * frame_transfer::room, ec);
  if (!ec)
    ec = receives_->make();
  if (ec)
    return ec;
  for (std::uint32_t i = 0; i < options_.sends; ++i)
    sends_.emplace_back(*this, i,
                        static_cast<std::byte*>(send_memory_.data()) + i * frame_transfer::room);
  return begin();
}

// From here on the link keeps itself alive until its queue pair has ended.
error_code link_impl::begin() {
  turn t(*this);
  t.changed();
  receives_->begin();
  return reason_;
}

private_data link_impl::hello() const {
  handshake h;
  h.what = kind_;
  h.receives = options_.receives;
  h.promise = receives_->promise();
  h.receive_size = options_.receive_size;
  h.max_reads = qp_->options().max_reads;
  h.atomics = member_device().attributes().atomic_cap;
  const handshake_bytes bytes = encode(h);
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(h.size())};
}

error_code link_impl::on_hello(std::span<const std::byte> data, bool accepting) {
  handshake peer;
  if (const error_code ec = decode(data, peer))
    return ec;
  frame_options o;
  o.receives = options_.receives;
  o.receive_size = options_.receive_size;
  o.promise = receives_->promise();
  o.peer_receives = peer.receives;
  o.peer_promise = peer.promise;
  o.peer_receive_size = peer.receive_size;
  o.sends = options_.sends;
  // The accepting side must not send before it has received (RFC 5044, section 7).
  const bool iwarp = member_device().type() == transport::iwarp;
  o.speaks_first = iwarp && !accepting;
  o.waits_for_peer = iwarp && accepting;
  // A connection reads its long messages from the peer's memory.
  reads_ = peer.max_reads != 0;
  if (peer.what != kind_ || !frame_link::usable(o) ||
      (kind_ == handshake::kind::message && !reads_))
    return error::incompatible_peer;
  const std::lock_guard guard(mutex_);
  if (failing()) // parts that were made now would never be stopped
    return reason_;
  if (link_)
    return asio::error::already_connected;
  try {
    link_.emplace(o);
    make_parts(*link_, peer);
  } catch (const std::bad_alloc&) {
    link_.reset();
    return asio::error::no_memory;
  }
  if (o.waits_for_peer) {
    holding_ = true;
    qp_->hold();
  }
  return {};
}

void link_impl::on_connected(const connection_info&) {
  turn t(*this);
  if (state_ == state::open)
    state_ = state::connected;
  if (reads_ && !qp_->supports(IBV_WR_RDMA_READ)) // the connection manager says otherwise
    fail(error::incompatible_peer);
  if (!failing())
    do_or_fail([this] { probe_.start(options_.keep_alive); });
  t.run();
}

// --- Driving ---------------------------------------------------------------------------------

error_code link_impl::check() const {
  if (failing())
    return reason_ == asio::error::eof ? error_code(asio::error::broken_pipe) : reason_;
  return state_ == state::connected ? error_code() : error_code(asio::error::not_connected);
}

void link_impl::posted() {
  assert(mutex_.is_locked());
  if (posted_++ == 0)
    self_ = shared_from_this();
}

bool link_impl::post(link_transfer& t) {
  assert(mutex_.is_locked());
  posted();
  t.ec = {};
  t.withdrawn = false;
  t.wr.next = nullptr; // the work request may have been in a chain before
  if (qp_->start(static_cast<send_operation&>(t)))
    return true;
  --posted_;
  close_sink(t);
  fail(t.ec);
  return false;
}

error_code link_impl::open_sink(link_transfer& read) {
  assert(mutex_.is_locked());
  error_code ec;
  ibv_sge& e = read.elements[0];
  if (member_device().type() != transport::iwarp || read.wr.num_sge != 1 || e.length == 0)
    return ec;
  read.sink_ = memory_region(pool_.get_protection_domain(), reinterpret_cast<void*>(e.addr),
                             e.length, access::local_write, ec);
  if (!ec)
    e.lkey = read.sink_.lkey();
  return ec;
}

void link_impl::close_sink(link_transfer& t) noexcept {
  if (!t.sink_.is_open())
    return;
  error_code ec;
  t.sink_.close(ec);
  if (!ec)
    return;
  kept_blocks memory;
  memory_pool_impl::find_blocks({t.elements.data(), 1}, memory);
  withhold_key(std::move(t.sink_), std::move(memory));
  t.ec = error::device_keeps_memory;
}

bool link_impl::withdraw(link_transfer& t) {
  assert(mutex_.is_locked());
  t.withdrawn = t.withdrawn || qp_->withdraw(t.id);
  return t.withdrawn;
}

void link_impl::send(std::uint32_t slot, const outgoing_frame& frame) {
  assert(mutex_.is_locked());
  frame_transfer& t = sends_[slot];
  const frame_bytes header = encode(frame.header);
  t.elements[0] = element_of({t.place_, 0, send_memory_.lkey()});
  t.wr.num_sge = 1;
  t.copy(header.data(), header.size());
  if (frame.payload_of_operation)
    add_payload(frame, t);
  else
    t.copy(frame.payload.data(), frame.header.length);
  const bool one = t.wr.num_sge == 1;
  t.usual = one && !frame.fenced;
  t.wr.send_flags = IBV_SEND_SIGNALED | (frame.fenced ? IBV_SEND_FENCE : 0);
  t.inline_bytes = one ? t.elements[0].length : send_operation::never_inline;
  frames_sent_.add();
  post(t);
}

link_statistics link_impl::statistics() const noexcept {
  link_statistics result;
  result.frames_sent = frames_sent_.value();
  result.frames_received = frames_received_.value();
  result.bytes_sent = bytes_sent_.value();
  result.bytes_received = bytes_received_.value();
  result.credit_waits = credit_waits_.value();
  result.queue = cq_->counters();
  return result;
}

void link_impl::run(operation_list& done) noexcept {
  assert(mutex_.is_locked());
  if (link_ && state_ == state::connected)
    do_or_fail([&] { drive(done); });
  if (state_ == state::failing && posted_ == 0)
    stop(done);
  if (state_ == state::stopped && closing_ != nullptr) {
    // After both goodbyes, the peer may be gone before this side's goodbye completes: no error.
    closing_->ec = link_->said_goodbye() ? error_code() : reason_;
    done.push_back(*std::exchange(closing_, nullptr));
  }
}

// The driver leaves no action of the parts undone, so they are asked only if it does not run. Their
// actions, or a failure of them, may need the link again.
void link_impl::advance(operation_list& done) noexcept {
  run(done);
  if (link_ && state_ == state::connected)
    return;
  bool again = true;
  do_or_fail([&] {
    bool any = false;
    while (run_parts(done))
      any = true;
    again = any;
  });
  if (again)
    run(done);
}

void link_impl::end_event(operation_list& done) noexcept {
  if (failing())
    return;
  do_or_fail([this] { after_event(); });
  if (failing())
    run(done);
}

void link_impl::lack_memory() noexcept {
  fail(asio::error::no_memory);
  if (link_)
    link_->fail(asio::error::no_memory);
}

void link_impl::drive(operation_list& done) {
  assert(link_ && state_ == state::connected);
  receives_->take();
  for (bool more = true; more && !failing();) {
    const link_action a = link_->next();
    switch (a.what) {
    case link_action::kind::repost:
      receives_->free(a.slot);
      break;
    case link_action::kind::send:
      send(a.slot, *a.frame);
      break;
    case link_action::kind::fail:
      fail(a.ec);
      break;
    case link_action::kind::closed:
      fail(asio::error::eof);
      break;
    case link_action::kind::none:
      more = run_parts(done);
    }
  }
  credit_waits_.add(link_->credit_waits() - credit_waits_.value());
}

// To end their operations, the parts allocate nothing. Each call of run_parts takes its next step
// from a list, so a step that fails is not repeated, and the steps behind it are done.
void link_impl::stop(operation_list& done) {
  assert(state_ == state::failing && posted_ == 0);
  state_ = state::stopped;
  if (!link_)
    return;
  // If the device still uses memory, report that first: the caller must not reuse the memory.
  link_->stop(kept_ ? error_code(error::device_keeps_memory) : reason_);
  for (bool more = true; more;)
    do_or_fail([&] { more = run_parts(done); });
}

// Once the mutex is unlocked, only locals are used. An operation that was started may have ended on
// another thread and released the last reference to the link.
void link_impl::settle(std::unique_lock<mutex>& l, operation_list& done) noexcept {
  assert(l.owns_lock() && l.mutex() == &mutex_);
  if (removed_ && state_ == state::stopped && posted_ == 0 && !kept_)
    drop_memory();
  const dropped_blocks dropped(std::move(dropped_));
  std::shared_ptr<context_member> last;
  std::shared_ptr<queue_pair_impl> failed;
  std::shared_ptr<completion_queue_impl> cq;
  if (state_ == state::stopped && link_)
    while (const auto slot = link_->next_freed())
      receives_->free(*slot);
  const std::shared_ptr<shared_receives_impl> shared = receives_->waited_for();
  if (posted_ == 0)
    last = std::move(self_);
  if (failing() && !std::exchange(told_, true))
    failed = qp_;
  if (!done.empty())
    cq = cq_;
  const error_code why = reason_;
  cq_->operation_started();
  l.unlock();
  if (failed)
    failed->fail(why);
  if (cq)
    cq->complete(done);
  if (shared)
    shared->wake();
}

void link_impl::fail(const error_code& why) {
  assert(mutex_.is_locked() && why);
  kept_ = kept_ || why == error::device_keeps_memory;
  if (failing())
    return;
  state_ = state::failing;
  reason_ = why;
}

template <class Key>
bool link_impl::end_key(Key& key, const registered_buffer& memory, buffer_access& access) noexcept {
  error_code ec;
  key.close(ec);
  if (!ec)
    return true;
  kept_blocks viewed;
  if constexpr (std::same_as<Key, memory_region>) {
    // The caller's memory may belong to a pool, too.
    const ibv_sge all = element_of(mutable_buffer(key.data(), key.size(), 0));
    if (memory.empty())
      memory_pool_impl::find_blocks({&all, 1}, viewed);
  }
  withhold_key(std::move(key), memory, std::move(access), std::move(viewed));
  fail(ec);
  return false;
}

template bool link_impl::end_key(memory_region&, const registered_buffer&, buffer_access&) noexcept;
template bool link_impl::end_key(grant_key&, const registered_buffer&, buffer_access&) noexcept;

void link_impl::on_receive(link_receive& r, disposal how) {
  if (how == disposal::destroy)
    r.fail(asio::error::operation_aborted);
  else
    cq_->background_ending();
  returned(how, [&](operation_list&) {
    if (r.ec)
      fail(r.ec);
    else
      take_frame(r);
  });
}

// Returns false if the link does not keep the receive.
bool link_impl::take_frame(const frame_receive& r) {
  assert(mutex_.is_locked());
  if (!link_)
    return false;
  frames_received_.add();
  const bool kept = link_->on_received(r.slot, received_bytes(r));
  if (std::exchange(holding_, false))
    qp_->release();
  return kept;
}

// A pool does not report freed memory, and the peer may be waiting, so this polls.
void link_impl::look_for_memory() {
  constexpr std::chrono::milliseconds pause(10);
  if (failing())
    return;
  call_at(timer::memory, protocol_clock::now() + pause, [](link_impl& self) {
    if (self.receives_->starved())
      self.look_for_memory(); // in case `run`, which follows, finds no memory
  });
}

void link_impl::on_transfer(link_transfer& t, disposal how) {
  if (how == disposal::destroy)
    t.fail(asio::error::operation_aborted);
  returned(how, [&](operation_list& done) {
    close_sink(t);
    if (t.ec && !t.withdrawn)
      fail(t.ec);
    t.done_(*this, t, done);
  });
}

bool link_impl::is_usable(const registered_buffer& memory) const noexcept {
  const memory_region* const region = memory.region();
  return region == nullptr ||
         region->native_handle()->pd == pool_.get_protection_domain().native_handle();
}

// --- Keeping alive ---------------------------------------------------------------------------

keep_alive_probe::keep_alive_probe(link_impl& link) noexcept
    : link_transfer(
          link, [](link_impl& l, link_transfer&, operation_list&) { l.probe_.asking_ = false; }) {}

void keep_alive_probe::start(std::chrono::milliseconds interval) {
  constexpr std::chrono::milliseconds longest = std::chrono::hours(24);
  if (interval <= interval.zero())
    return;
  // Checks twice per interval: a peer that falls silent after one check is probed at the next but
  // one.
  pause_ = std::chrono::microseconds(std::min(interval, longest)) / 2;
  wait();
}

void keep_alive_probe::wait() {
  link().call_at(link_impl::timer::alive, protocol_clock::now() + pause_, [](link_impl& l) {
    if (!l.failing())
      l.probe_.check();
  });
}

void keep_alive_probe::check() {
  if (signs_ == signs_before_ && !asking_) {
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {};
    asking_ = link().post(*this);
  }
  signs_before_ = signs_;
  wait();
}

void link_impl::call_at(timer which, protocol_clock::time_point when, void (*then)(link_impl&)) {
  assert(mutex_.is_locked());
  if (removed_)
    return;
  auto& t = timers_[static_cast<std::size_t>(which)];
  if (!t)
    t = std::make_unique<background_timer>(context());
  t->set(when, [weak = weak_from_this(), &t, then] {
    const auto self = std::static_pointer_cast<link_impl>(weak.lock());
    if (!self)
      return;
    // First process completions, because the runner may be blocked in a handler: `then` judges by
    // what has arrived.
    self->cq_->run_ready_internal();
    turn now(*self);
    if (!t) // the link was closed in the meantime
      return;
    t->ran_out();
    self->do_or_fail([&] { then(*self); });
    now.run_event();
  });
}

// --- Ending ----------------------------------------------------------------------------------

void link_impl::close() {
  if (!removed_.exchange(true))
    service_.remove(*this);
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
    told_ = true;
  }
  qp_->close();
  turn(*this).run();
}

void link_impl::end(const error_code& why) {
  turn t(*this);
  fail(why);
  t.run();
}

bool link_impl::is_alive() const {
  const std::lock_guard guard(mutex_);
  return !failing();
}

// The application may keep a closed link, so its memory is released here.
void link_impl::drop_memory() {
  dropped_.drop(send_memory_);
  receives_->drop_memory(dropped_);
}

bool link_impl::start_close(operation& op) {
  turn t(*this);
  // After both goodbyes, the end of the queue pair may still be outstanding: wait for it.
  const bool said = link_ && link_->said_goodbye();
  const bool over = state_ == state::stopped && said;
  op.ec = said ? error_code() : check();
  if (!op.ec && closing_ != nullptr)
    op.ec = asio::error::already_started;
  if (op.ec || over)
    return false;
  operation_starting();
  closing_ = &op;
  if (!said)
    do_or_fail([this] { link_->close(); });
  t.run();
  return true;
}

bool link_impl::cancel_close(std::uint64_t id, asio::cancellation_type_t type) {
  turn t(*this);
  if (closing_ == nullptr || closing_->id != id)
    return false;
  if (!may_leave_effects(type)) // the goodbye is on its way
    return true;
  closing_->fail(asio::error::operation_aborted);
  t.done.push_back(*std::exchange(closing_, nullptr));
  t.changed();
  return true;
}

} // namespace asio_rdma::detail
