// SPDX-License-Identifier: BSL-1.0
#include "locks/alock_remote.hpp"

#include <asio_rdma/detail/connection/connection_arguments.hpp>

#include "connection/connection_impl.hpp"
#include "locks/alock_timer.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>

namespace asio_rdma::detail {
namespace {

// The number of descriptors in one request, if no more are needed at once.
constexpr std::uint64_t usual_descriptors = 16;
// Round trips in a row before a pause.
constexpr unsigned looks_at_once = 2;
// The longest pauses between two looks, as powers of two of microseconds: for changes that are
// never announced, and for changes that may be.
constexpr unsigned longest = 10, longest_if_told = 14;

} // namespace

/// An acquisition and its outstanding chain of accesses.
class alock_remotes::party final : public remote_operation, public alock_party {
public:
  explicit party(alock_remotes& of) noexcept : remote_operation(&party::chain_done), all(of) {}

  bool unlock(alock_operation* told) noexcept override {
    const auto keep = self;
    const std::lock_guard guard(all.mutex_);
    const bool waits =
        told != nullptr &&
        (told->view->takes_by(all) ? all.count(*told) : told->view->wait_for(*told, keep));
    waiter = waits ? told : nullptr;
    protocol->unlock();
    begin_looking();
    all.run(*this);
    return waits;
  }

  void look_again() {
    std::shared_ptr<void> keep; // keeps the other parties as well
    const std::lock_guard guard(all.mutex_);
    keep = next_turn.end();
    all.look(*this);
  }

  // The party now waits for something else.
  void begin_looking() noexcept {
    looks = 0;
    if (timer)
      timer->begin();
  }

  static void chain_done(operation* base, disposal how) {
    auto& p = static_cast<party&>(static_cast<remote_operation&>(*base));
    if (how == disposal::destroy)
      p.fail(asio::error::operation_aborted);
    p.all.on_chain(p);
  }

  static constexpr std::size_t max_chain = 4;

  std::uint64_t& word(std::size_t i) const noexcept {
    return static_cast<std::uint64_t*>(words.data())[i];
  }

  alock_remotes& all;                     // its lock guards the other members
  std::optional<alock_protocol> protocol; // set while the party takes part
  descriptor_set* from = nullptr;
  std::uint64_t descriptor = 0;
  std::uint64_t lock_at = 0; // the offset in the segment
  alock_operation* waiter = nullptr;
  std::shared_ptr<alock_remotes> self; // set while the party takes part
  std::unique_ptr<alock_timer> timer;
  unsigned looks = 0;
  alock_action::kind looks_as = alock_action::kind::wait;
  alock_next_turn<party> next_turn{*this};
  std::span<alock_access> chain;
  bool unposted = false; // the chain, as there was no memory to post it
  bool taken = false;    // the chain was given to the link: it may have taken effect
  bool paused = false;   // since memory ran out, until the next chain is done
  // The values of the chain, and the word that tells whether the awaited party is alive. Registered
  // in advance, so that a queued party needs no memory to leave the queue.
  registered_buffer words;
  std::array<std::optional<payload_of<mutable_buffer>>, max_chain> payloads;
  std::uint64_t asked_of = 0; // the party that this chain checks for life, or 0
  party* next_free = nullptr;
};

/// Asks a node for descriptors.
class alock_remotes::request final : public global_request {
public:
  request(std::shared_ptr<alock_remotes> all, descriptor_set& p, std::uint64_t count)
      : global_request(&request::answered), all_(std::move(all)), set_(p), count_(count) {
    message.what = global_message::kind::descriptors;
    message.node = p.node;
    message.segment = p.segment_number;
    message.value = count;
  }

private:
  static void answered(operation* base, disposal how) {
    const std::unique_ptr<request> r(&static_cast<request&>(static_cast<global_request&>(*base)));
    if (how == disposal::destroy)
      r->fail(asio::error::operation_aborted);
    r->all_->on_answer(r->set_, r->ec, r->message.value, r->count_);
  }

  const std::shared_ptr<alock_remotes> all_;
  descriptor_set& set_;
  const std::uint64_t count_;
};

alock_remotes::alock_remotes(global_memory_impl& memory)
    : memory_(std::static_pointer_cast<global_memory_impl>(memory.shared_from_this())),
      service_(memory.service()),
      id_(memory.node()->id()) {}

alock_remotes::~alock_remotes() = default;

bool alock_remotes::start(alock_operation& op) {
  const auto memory = memory_.lock();
  remote_buffer target;
  op.ec = asio::error::bad_descriptor;
  const global_lane* const lane =
      memory ? memory->find({op.at, sizeof(alock_words), alignof(alock_words), true}, target, op.ec)
             : nullptr;
  if (lane == nullptr)
    return false;
  if (!lane->link->queue_pair()->supports(IBV_WR_ATOMIC_CMP_AND_SWP)) {
    op.ec = asio::error::operation_not_supported;
    return false;
  }
  const lock l(mutex_);
  if (closed_) {
    op.ec = asio::error::bad_descriptor;
    return false;
  }
  descriptor_set& p = sets_[{lane, op.at.segment()}];
  if (!p.link) {
    p.link = lane->link;
    p.users = lane->users;
    p.node = op.at.node();
    p.segment_number = op.at.segment();
    p.segment = lane->segments[op.at.segment()];
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

// Counts an operation of the view. Returns false if the view is closed.
bool alock_remotes::count(alock_operation& op) noexcept {
  assert(mutex_.held());
  if (!closed_)
    op.service->operation_starting();
  return !closed_;
}

// --- Descriptors -----------------------------------------------------------------------------

void alock_remotes::ask(descriptor_set& from) noexcept {
  if (from.asked || from.waiting.empty())
    return;
  const auto memory = memory_.lock();
  if (closed_ || !memory)
    return fail_waiting(from, asio::error::operation_aborted);
  const std::uint64_t count = std::clamp<std::uint64_t>(from.waiting.size(), usual_descriptors,
                                                        global_message::max_descriptors);
  try {
    auto r = std::make_unique<request>(shared_from_this(), from, count);
    from.asked = memory->start(*r, from.node);
    if (from.asked)
      static_cast<void>(r.release());
    else
      fail_waiting(from, r->ec);
  } catch (const std::bad_alloc&) {
    fail_waiting(from, asio::error::no_memory);
  }
}

void alock_remotes::on_answer(descriptor_set& from, error_code ec, std::uint64_t offset,
                              std::uint64_t count) noexcept {
  const lock l(mutex_);
  assert(from.asked);
  from.asked = false;
  if (closed_)
    ec = asio::error::operation_aborted;
  else if (!ec && (!descriptors_fit(from, offset, count) || knows_any(from, offset, count)))
    ec = error::protocol_violation;
  if (ec)
    return fail_waiting(from, ec);
  try {
    add_descriptors(from, remote_word(id_, from.segment_number, offset).bits(), count);
  } catch (const std::bad_alloc&) {
    if (from.free.empty())
      return fail_waiting(from, asio::error::no_memory);
  }
  while (!from.free.empty() && !from.waiting.empty()) {
    auto& op = static_cast<alock_operation&>(from.waiting.front());
    from.waiting.pop_front();
    begin(from, op);
  }
  ask(from);
}

// Reserves room in the free list for each descriptor, so that returning one cannot fail.
void alock_remotes::add_descriptors(descriptor_set& to, std::uint64_t first, std::uint64_t count) {
  to.free.reserve(to.parties.size() + count);
  for (std::uint64_t i = count; i-- != 0;) {
    const std::uint64_t d = first + i * sizeof(alock_descriptor);
    to.parties.emplace(d, nullptr);
    to.free.push_back(d);
  }
}

void alock_remotes::fail_waiting(descriptor_set& from, const error_code& ec) noexcept {
  while (!from.waiting.empty()) {
    auto& op = static_cast<alock_operation&>(from.waiting.front());
    from.waiting.pop_front();
    complete(op, ec);
  }
}

bool alock_remotes::descriptors_fit(const descriptor_set& p, std::uint64_t offset,
                                    std::uint64_t count) noexcept {
  const std::uint64_t bytes = count * sizeof(alock_descriptor);
  return offset % alignof(alock_descriptor) == 0 && bytes <= p.segment.size &&
         offset <= p.segment.size - bytes;
}

// A node that gives a descriptor twice would give it to two parties.
bool alock_remotes::knows_any(const descriptor_set& s, std::uint64_t offset,
                              std::uint64_t count) const noexcept {
  const std::uint64_t first = remote_word(id_, s.segment_number, offset).bits();
  for (std::uint64_t i = 0; i != count; ++i)
    if (s.parties.contains(first + i * sizeof(alock_descriptor)))
      return true;
  return false;
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
  party* const taken = take_party(from.link->pool(), ec);
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
    set_timer(p, longest, false);
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
      set_timer(p, a.what == kind::wait ? longest_if_told : longest, p.protocol->leaves());
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
    memory->tell_next(from.link.get(), d.segment(), d.offset());
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

// --- Accesses --------------------------------------------------------------------------------

bool alock_remotes::aim(const party& p, const alock_access& a, remote_buffer& target) noexcept {
  std::uint64_t base = p.lock_at;
  if (a.word == alock_word::next || a.word == alock_word::turn) {
    const remote_word d(a.descriptor);
    if (d.segment() != p.from->segment_number || !descriptors_fit(*p.from, d.offset(), 1))
      return false;
    base = d.offset();
  }
  const remote_buffer& s = p.from->segment;
  target = {s.address + base + alock_layout::offset(a.word), sizeof(std::uint64_t), s.rkey};
  return true;
}

// Posts the chain. Returns false with the error if nothing is outstanding.
bool alock_remotes::post(party& p, error_code& ec) {
  assert(p.chain.size() < party::max_chain); // one more access may follow
  std::array<remote_work, party::max_chain> works{};
  std::size_t n = 0;
  const auto add = [&](const remote_buffer& target, ibv_wr_opcode opcode,
                       std::uint64_t value) -> remote_work& {
    std::uint64_t& word = p.word(n);
    word = value;
    works[n] = work_on(target, opcode);
    works[n].local = &p.payloads[n].emplace(mutable_buffer(&word, sizeof word, p.words.lkey()));
    works[n].found = &word;
    return works[n++];
  };
  remote_buffer target;
  for (const alock_access& a : p.chain) {
    if (!aim(p, a, target)) {
      ec = error::protocol_violation;
      return false;
    }
    if (a.what == alock_access::kind::compare_exchange) {
      remote_work& w = add(target, IBV_WR_ATOMIC_CMP_AND_SWP, 0);
      w.compare_add = a.expected;
      w.swap = a.value;
    } else {
      const bool reads = a.what == alock_access::kind::read;
      add(target, reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, a.value);
    }
  }
  p.asked_of = p.protocol->waits_for();
  if (p.asked_of != 0) {
    const alock_access of_him{.word = alock_word::next, .descriptor = p.asked_of};
    if (!aim(p, of_him, target)) {
      ec = error::protocol_violation;
      return false;
    }
    target.address += offsetof(alock_descriptor, dead) - alock_layout::offset(alock_word::next);
    add(target, IBV_WR_RDMA_READ, 0);
  }
  if (!p.from->link) {
    ec = asio::error::operation_aborted;
    return false;
  }
  p.ec = p.first = {};
  // Posts the chain behind operations that the same program started earlier, which may wait for
  // their turn: other nodes see their effects before the lock is released.
  p.taken = false;
  const auto start = [works, n](connection_impl& link, party& which) {
    which.taken = true; // once started, other threads may read the party
    try {
      if (link.start(which, {works.data(), n}))
        return true;
    } catch (...) {
      which.taken = false;
      throw;
    }
    which.taken = false;
    return false;
  };
  if (p.from->users->start_behind(p, start))
    return true;
  ec = p.ec;
  return false;
}

// Called if nothing of the chain has been posted. Returns false if the chain will be posted after a
// pause. A lane that has failed for lack of memory reports the same error, but permanently.
bool alock_remotes::on_refused(party& p, const error_code& ec) noexcept {
  if (ec == boost::system::errc::not_enough_memory && p.from->link && p.from->link->is_alive()) {
    p.unposted = true;
    pause(p);
    return false;
  }
  // A party that takes this party for alive would wait forever.
  if (!p.protocol->on_refused(ec) && p.from->link)
    p.from->link->end(ec);
  return true;
}

void alock_remotes::on_chain(party& p) {
  const auto keep = p.self;
  const lock l(mutex_);
  if (!p.taken) { // the chain waited for its turn
    if (on_refused(p, p.ec))
      run(p);
    return;
  }
  if (std::exchange(p.paused, false))
    p.begin_looking();
  for (std::size_t i = 0; i < p.chain.size(); ++i)
    p.chain[i].seen = p.word(i);
  p.protocol->on_done(p.ec);
  if (!p.ec && p.asked_of != 0 && p.word(p.chain.size()) != 0)
    p.protocol->on_dead(p.asked_of);
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
