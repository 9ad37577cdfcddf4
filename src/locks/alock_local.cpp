// SPDX-License-Identifier: BSL-1.0
#include "locks/alock_local.hpp"

#include "core/checked_mutex.hpp"
#include "global/global_memory_impl.hpp"
#include "locks/alock_timer.hpp"

#include <atomic>
#include <cassert>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace asio_rdma::detail {
namespace {

constexpr unsigned longest_pause = 10; // microseconds, as a power of two

} // namespace

class alock_locals::party final : public alock_party {
public:
  party(shard& at, std::uint64_t number) noexcept : home(at), id(number) {}
  bool unlock(alock_operation* op) noexcept override;
  void look_again();

  shard& home; // its lock guards the other members
  const std::uint64_t id;
  std::uint64_t next = 0, turn = 0;
  std::optional<alock_protocol> protocol; // set while the party takes part
  alock_words* words = nullptr;
  remote_word lock;
  alock_operation* waiter = nullptr;
  const alock_view* view = nullptr;
  completion_service* service = nullptr; // of the view, until the view is closed
  std::shared_ptr<global_node> node;
  std::unique_ptr<alock_timer> timer; // set while the party waits for the other cohort
  alock_next_turn<party> next_turn{*this};
  bool free_later = false; // set until the context of the view has run `next_turn`
  party* next_free = nullptr;
};

/// The locks whose addresses have the same hash. Operations of the local cohort on such a lock are
/// serialized here, so a queue with a missing link is never visible.
class alock_locals::shard {
public:
  void init(global_node& node) noexcept { node_ = &node; }

  bool start(alock_operation& op, alock_words& words, const std::shared_ptr<global_node>& keep) {
    const std::lock_guard guard(mutex_);
    if (op.view->is_closed()) {
      op.ec = asio::error::bad_descriptor;
      return false;
    }
    party& p = take();
    assert(!p.protocol && p.waiter == nullptr);
    op.service->operation_starting();
    p.protocol.emplace(alock_cohort::local, p.id, op.local_budget);
    p.words = &words;
    p.lock = op.at;
    p.waiter = &op;
    p.view = op.view;
    p.service = op.service;
    p.node = keep;
    run(p);
    return true;
  }

  bool unlock(party& p, alock_operation* op) noexcept {
    const auto keep = p.node;
    const std::lock_guard guard(mutex_);
    const bool waits =
        op != nullptr &&
        op->view->wait_for(*op, std::shared_ptr<alock_parties>(keep, &alock_locals::of(*keep)));
    p.waiter = waits ? op : nullptr;
    p.protocol->unlock();
    run(p);
    return waits;
  }

  void cancel(const alock_view& view, std::uint64_t id) {
    const std::lock_guard guard(mutex_);
    for (party& p : parties_) {
      if (p.waiter == nullptr || p.waiter->view != &view || p.waiter->id != id ||
          !p.protocol->cancel())
        continue;
      p.timer.reset();
      complete(p, asio::error::operation_aborted);
      run(p);
    }
  }

  void abandon(const alock_view& view) {
    const std::lock_guard guard(mutex_);
    for (party& p : parties_) {
      if (p.view == &view) {
        p.timer.reset();
        p.service = nullptr; // a guard may outlive the service
      }
      if (p.waiter == nullptr || p.waiter->view != &view)
        continue;
      const bool gives_up = p.protocol->cancel();
      complete(p, asio::error::operation_aborted);
      if (gives_up)
        run(p);
    }
  }

private:
  party& take() {
    if (free_ == nullptr)
      return parties_.emplace_back(*this, parties_.size() + 1);
    return *std::exchange(free_, free_->next_free);
  }
  party* find(std::uint64_t id) noexcept {
    return id != 0 && id <= parties_.size() ? &parties_[id - 1] : nullptr;
  }

  // Completes an operation of the context, so no handler is called here. Called with the lock held:
  // once a view has abandoned its waiting operations, its context may be destroyed.
  static void complete(party& p, const error_code& ec) {
    assert(p.home.mutex_.held());
    if (p.waiter == nullptr)
      return;
    alock_operation& op = *std::exchange(p.waiter, nullptr);
    if (op.others)
      return op.view->complete_waiting(op, ec);
    op.ec = ec;
    operation_list done;
    done.push_back(op);
    op.service->complete(done);
  }

  // The steps of a queued party allocate nothing.
  void run(party& first) noexcept {
    assert(mutex_.held() && first.protocol);
    for (party* p = &first; p != nullptr;)
      p = step(*p);
  }

  /// Returns the party to process next, or null.
  party* step(party& p) {
    using kind = alock_action::kind;
    party* woken = nullptr;
    for (;;) {
      const alock_action a = p.protocol->next();
      switch (a.what) {
      case kind::access:
        p.protocol->on_done(carry_out(p, a.chain));
        break;
      case kind::granted:
        p.timer.reset();
        assert(p.waiter != nullptr);
        p.waiter->granted = &p;
        complete(p, {});
        break;
      case kind::failed:
        p.timer.reset();
        complete(p, a.ec);
        break;
      case kind::wake:
        woken = find(a.descriptor);
        if (woken != nullptr && woken->protocol)
          woken->protocol->look();
        else
          woken = nullptr;
        break;
      case kind::poll:
        wait(p);
        return woken;
      case kind::none:
      case kind::wait:
        return woken;
      case kind::ended:
        complete(p, a.ec);
        end(p);
        return woken;
      }
    }
  }

  void end(party& p) {
    const bool reusable = p.protocol->reusable();
    p.protocol.reset();
    p.timer.reset();
    p.node.reset(); // the caller keeps the node
    if (reusable)
      give_back(p);
  }

  // A party that waits for a turn of this context cannot be reused at once: the next acquisition
  // may be of another context.
  void give_back(party& p) noexcept {
    assert(mutex_.held() && !p.protocol);
    p.free_later = p.next_turn.is_queued();
    if (!p.free_later)
      p.next_free = std::exchange(free_, &p);
  }

  void wait(party& p) {
    if (p.service == nullptr)
      return;
    try {
      if (!p.timer)
        p.timer = std::make_unique<alock_timer>(p.service->context());
      p.timer->set(longest_pause, false, [this, &p, keep = p.node] {
        const std::lock_guard guard(mutex_);
        look(p);
      });
    } catch (const std::bad_alloc&) {
      p.next_turn.begin(*p.service, p.node);
    }
  }

  void look(party& p) {
    if (!p.protocol || p.protocol->held())
      return;
    if (const std::uint64_t d = p.protocol->waits_for(); is_dead(p, d))
      p.protocol->on_dead(d);
    p.protocol->look();
    run(p);
  }

  friend party; // `look_again` locks the shard

  // Only the head of the queue waits for a party of the other cohort.
  bool is_dead(const party& p, std::uint64_t descriptor) const noexcept {
    if (!p.timer || descriptor == 0)
      return false;
    const remote_word d(descriptor);
    const void* const at = node_->local(remote_word(node_->id(), d.segment(), d.offset()),
                                        sizeof(alock_descriptor), alignof(alock_descriptor));
    return at != nullptr && static_cast<const alock_descriptor*>(at)->dead.load() != 0;
  }

  error_code carry_out(party& p, std::span<alock_access> chain) {
    for (alock_access& a : chain) {
      switch (a.word) {
      case alock_word::own_tail: {
        a.seen = a.expected;
        alock_layout::local_tail(*p.words).compare_exchange(a.seen, a.value);
        break;
      }
      case alock_word::other_tail:
        a.seen = alock_layout::remote_tail(*p.words).load();
        break;
      case alock_word::victim:
        if (a.what == alock_access::kind::read) {
          a.seen = alock_layout::victim(*p.words).load();
        } else {
          alock_layout::victim(*p.words).store(a.value);
          std::atomic_thread_fence(std::memory_order_seq_cst); // before the other tail is read
        }
        break;
      case alock_word::next:
      case alock_word::turn: {
        party* const owner = find(a.descriptor);
        if (owner == nullptr) // a program without the right to do so has written to the tail
          return error::protocol_violation;
        std::uint64_t& word = a.word == alock_word::next ? owner->next : owner->turn;
        if (a.what == alock_access::kind::read)
          a.seen = word;
        else
          word = a.value;
      }
      }
    }
    return {};
  }

  checked_mutex mutex_;
  global_node* node_ = nullptr;
  std::deque<party> parties_;
  party* free_ = nullptr;
};

bool alock_locals::party::unlock(alock_operation* op) noexcept { return home.unlock(*this, op); }

void alock_locals::party::look_again() {
  std::shared_ptr<void> keep; // keeps the shard as well
  const std::lock_guard guard(home.mutex_);
  keep = next_turn.end();
  if (free_later)
    home.give_back(*this);
  else
    home.look(*this);
}

alock_locals::alock_locals(global_node& node) : shards_(new shard[shard_count]) {
  for (std::size_t i = 0; i < shard_count; ++i)
    shards_[i].init(node);
}

alock_locals::~alock_locals() = default;

alock_locals& alock_locals::of(global_node& node) {
  return static_cast<alock_locals&>(node.guest([](global_node& n) -> std::unique_ptr<node_guest> {
    return std::make_unique<alock_locals>(n);
  }));
}

alock_locals::shard& alock_locals::shard_of(remote_word lock) noexcept {
  return shards_[lock.offset() / alignof(alock_words) % shard_count];
}

bool alock_locals::start(alock_operation& op, const std::shared_ptr<global_node>& keep) {
  void* const words = keep->local(op.at, sizeof(alock_words), alignof(alock_words));
  if (words == nullptr) {
    op.ec = op.at.offset() % alignof(alock_words) != 0 ? error::misaligned : error::remote_range;
    return false;
  }
  return shard_of(op.at).start(op, *static_cast<alock_words*>(words), keep);
}

void alock_locals::cancel(const alock_view& view, std::uint64_t id) {
  for (std::size_t i = 0; i < shard_count; ++i)
    shards_[i].cancel(view, id);
}

void alock_locals::abandon(const alock_view& view) {
  for (std::size_t i = 0; i < shard_count; ++i)
    shards_[i].abandon(view);
}

} // namespace asio_rdma::detail
