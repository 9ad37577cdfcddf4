// SPDX-License-Identifier: BSL-1.0
#include "locks/alock_remote.hpp"

#include "locks/alock_remote_party.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {
namespace {

// Round trips in a row before a pause.
constexpr unsigned looks_at_once = 2;
// The longest pauses between two looks, as powers of two of microseconds: for changes that are
// never announced, and for changes that may be.
constexpr unsigned longest_unannounced = 10, longest_if_announced = 14;

} // namespace

alock_remotes::alock_remotes(global_memory_impl& memory)
    : memory_(std::static_pointer_cast<global_memory_impl>(memory.shared_from_this())),
      service_(memory.service()),
      id_(memory.node()->id()) {}

alock_remotes::~alock_remotes() = default;

bool alock_remotes::start(alock_operation& op) {
  const auto memory = memory_.lock();
  remote_buffer target, segment;
  op.ec = asio::error::bad_descriptor;
  const std::shared_ptr<lane_link> lane =
      memory ? memory->find({op.at, sizeof(alock_words), alignof(alock_words), true}, target, op.ec,
                            &segment)
             : nullptr;
  if (lane == nullptr)
    return false;
  if (!lane->link()->target_queue_pair()->supports(IBV_WR_ATOMIC_CMP_AND_SWP)) {
    op.ec = asio::error::operation_not_supported;
    return false;
  }
  const lock l(mutex_);
  if (closed_) {
    op.ec = asio::error::bad_descriptor;
    return false;
  }
  const auto key = std::make_pair(lane.get(), op.at.segment());
  if (sets_.find(key) == sets_.end())
    drop_unused();
  descriptor_set& p = sets_[key];
  if (!p.link) {
    p.link = lane->link();
    p.users = lane;
    p.node = op.at.node();
    p.segment_number = op.at.segment();
    p.segment = segment;
  }
  op.service->operation_starting();
  if (!p.free.empty()) {
    begin(p, op);
  } else {
    p.waiting.push_back(op);
    ask(p);
  }
  return true;
}

// Destroys the descriptors of nodes that have left, and so their lanes.
void alock_remotes::drop_unused() noexcept {
  assert(mutex_.held());
  std::erase_if(sets_, [](const auto& each) {
    const descriptor_set& s = each.second;
    return s.link && !s.asked && s.waiting.empty() && !s.link->link().is_alive() &&
           std::all_of(s.parties.begin(), s.parties.end(),
                       [](const auto& p) { return p.second == nullptr; });
  });
}

// Counts an operation of the view. Returns false if the view is closed.
bool alock_remotes::count(alock_operation& op) noexcept {
  assert(mutex_.held());
  if (!closed_)
    op.service->operation_starting();
  return !closed_;
}

// --- An acquisition --------------------------------------------------------------------------

// Takes a party with all that its later steps need. Returns null with the error if there is no
// memory.
alock_remotes::party* alock_remotes::take_party(const memory_pool& memory,
                                                error_code& ec) noexcept {
  try {
    if (free_ == nullptr)
      free_ = &parties_.emplace_back(*this);
    if (free_->words.empty())
      free_->words = memory.allocate(party::max_chain * sizeof(std::uint64_t), ec);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  return ec ? nullptr : std::exchange(free_, free_->next_free);
}

void alock_remotes::begin(descriptor_set& from, alock_operation& op) noexcept {
  assert(mutex_.held() && !from.free.empty());
  error_code ec;
  party* const taken = take_party(from.link->link().pool(), ec);
  if (taken == nullptr)
    return complete(op, ec);
  party& p = *taken;
  assert(!p.protocol && p.waiter == nullptr);
  p.descriptor = from.free.back();
  from.free.pop_back();
  from.parties[p.descriptor] = &p;
  p.protocol.emplace(alock_cohort::remote, p.descriptor, op.remote_budget);
  p.from = &from;
  p.lock_at = op.at.offset();
  p.waiter = &op;
  p.self = shared_from_this();
  p.begin_looking();
  run(p);
}

// Completes operations of the contexts, so no handler is called here.
void alock_remotes::complete(alock_operation& op, const error_code& ec) noexcept {
  if (op.others)
    return op.view->complete_waiting(op, ec);
  op.ec = ec;
  operation_list done;
  done.push_back(op);
  op.service->complete(done);
}

void alock_remotes::complete(party& p, const error_code& ec) noexcept {
  if (p.waiter != nullptr)
    complete(*std::exchange(p.waiter, nullptr), ec);
}

// If there is no memory for its next step, a queued party continues as soon as there is.
void alock_remotes::run(party& p) noexcept {
  assert(mutex_.held() && p.protocol && p.self);
  try {
    take_steps(p);
  } catch (const std::bad_alloc&) {
    pause(p);
  }
}

// Runs the party again after a random time that doubles. If there is no memory for a timer either,
// runs it in the next turn of the context.
void alock_remotes::pause(party& p) noexcept {
  p.paused = true;
  try {
    set_timer(p, longest_unannounced, false);
  } catch (const std::bad_alloc&) {
    p.next_turn.begin(service_, p.self);
  }
}

void alock_remotes::set_timer(party& p, unsigned longest_pause, bool maybe_in_vain) {
  if (!p.timer)
    p.timer = std::make_unique<alock_timer>(service_.context());
  p.timer->set(longest_pause, maybe_in_vain, [&p, keep = p.self] {
    const lock l(keep->mutex_);
    keep->look(p);
  });
}

void alock_remotes::take_steps(party& p) {
  using kind = alock_action::kind;
  for (;;) {
    const alock_action a =
        p.unposted ? alock_action{.what = kind::access, .chain = p.chain} : p.protocol->next();
    switch (a.what) {
    case kind::none:
      return;
    case kind::access: {
      error_code ec;
      p.chain = a.chain;
      p.unposted = true;
      const bool posted = post(p, ec);
      p.unposted = false;
      if (posted || !on_refused(p, ec))
        return;
      break;
    }
    case kind::granted:
      assert(p.waiter != nullptr);
      p.waiter->granted = &p;
      complete(p, {});
      break;
    case kind::failed:
      complete(p, a.ec);
      break;
    case kind::wake:
      if (a.descriptor != p.descriptor) // else a program without that right may have written
        wake(*p.from, a.descriptor);
      break;
    case kind::wait:
    case kind::poll:
      if (std::exchange(p.looks_as, a.what) != a.what)
        p.begin_looking();
      if (closed_ || p.looks++ < looks_at_once) {
        p.protocol->look();
        break;
      }
      set_timer(p, a.what == kind::wait ? longest_if_announced : longest_unannounced,
                p.protocol->leaves());
      if (p.protocol->leaves() && p.timer->in_vain())
        complete(p, error::owner_dead);
      return;
    case kind::ended:
      complete(p, a.ec);
      return end(p);
    }
  }
}

// The caller keeps this object alive.
void alock_remotes::end(party& p) {
  assert(p.from->parties[p.descriptor] == &p);
  p.from->parties[p.descriptor] = nullptr;
  if (p.protocol->reusable())
    p.from->free.push_back(p.descriptor);
  p.protocol.reset();
  p.next_free = std::exchange(free_, &p);
  p.self.reset();
}

// If the party belongs to another view, this sends a hint by way of the lock's node. The hint may
// be dropped: the party owns the lock already and polls from time to time.
void alock_remotes::wake(descriptor_set& from, std::uint64_t descriptor) {
  if (wake_here(from, descriptor))
    return;
  const remote_word d(descriptor);
  if (const auto memory = memory_.lock(); memory && from.link)
    memory->hint_next(from.link.get(), d.segment(), d.offset());
}

bool alock_remotes::wake_here(descriptor_set& from, std::uint64_t descriptor) {
  assert(mutex_.held());
  const auto found = from.parties.find(descriptor);
  if (found == from.parties.end())
    return false;
  if (party* const p = found->second; p != nullptr) {
    if (p->timer)
      p->timer->stop();
    p->begin_looking();
    p->protocol->look();
    run(*p);
  }
  return true;
}

void alock_remotes::on_next(const connection_impl* way, segment_id segment,
                            std::uint64_t descriptor) {
  const auto keep = shared_from_this();
  const lock l(mutex_);
  for (auto& [where, from] : sets_)
    if (from.link.get() == way && from.segment_number == segment)
      wake_here(from, remote_word(id_, segment, descriptor).bits());
}

void alock_remotes::look(party& p) noexcept {
  if (!p.protocol)
    return;
  p.protocol->look();
  run(p);
}

// --- Ending ----------------------------------------------------------------------------------

void alock_remotes::cancel(std::uint64_t id) {
  const lock l(mutex_);
  const error_code aborted = asio::error::operation_aborted;
  for (auto& [where, from] : sets_) {
    const auto op = std::find_if(from.waiting.begin(), from.waiting.end(),
                                 [id](const operation& o) { return o.id == id; });
    if (op == from.waiting.end())
      continue;
    auto& waiter = static_cast<alock_operation&>(*op);
    from.waiting.erase(op);
    return complete(waiter, aborted);
  }
  for (party& p : parties_) {
    if (p.waiter == nullptr || p.waiter->id != id || !p.protocol->cancel())
      continue;
    complete(p, aborted);
    p.begin_looking();
    return run(p);
  }
}

void alock_remotes::abandon(const alock_view& other) {
  const lock l(mutex_);
  for (party& p : parties_)
    if (p.waiter != nullptr && p.waiter->view == &other)
      complete(p, asio::error::operation_aborted);
}

// The links are closed, so the remaining operations on them fail. There is no context for timers
// any more.
void alock_remotes::close() {
  const lock l(mutex_);
  closed_ = true;
  for (party& p : parties_) {
    p.timer.reset();
    if (!p.protocol)
      continue;
    p.protocol->look();
    run(p);
  }
  for (auto& [where, from] : sets_) { // guards may outlive the sets, and keep this object
    fail_waiting(from, asio::error::operation_aborted);
    from.link.reset();
    from.users.reset();
  }
}

} // namespace asio_rdma::detail
