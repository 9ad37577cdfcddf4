// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/alock_layout.hpp>
#include <asio_rdma/detail/alock_view.hpp>
#include <asio_rdma/global_memory.hpp>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace asio_rdma {

/// How many critical sections in a row one cohort may have while the other waits, at least 1: a
/// cohort that keeps the lock takes fewer round trips, and lets the other wait. Each party's counts
/// while it is the first of its cohort.
struct alock_options {
  std::uint32_t local_budget = 8;
  std::uint32_t remote_budget = 8;
};

/// An `alock` that is held, given back when this goes. Move-only; false if it holds none.
class alock_guard {
public:
  alock_guard() noexcept = default;
  alock_guard(alock_guard&& other) noexcept : party_(std::exchange(other.party_, nullptr)) {}
  alock_guard& operator=(alock_guard&& other) noexcept {
    if (this != &other) {
      unlock();
      party_ = std::exchange(other.party_, nullptr);
    }
    return *this;
  }
  ~alock_guard() { unlock(); }

  explicit operator bool() const noexcept { return party_ != nullptr; }

  /// Begins to give the lock back, which takes up to two round trips where it is another node's,
  /// or longer if who is next is only just coming: the context has work until then. From any
  /// thread.
  void unlock() noexcept {
    if (auto* const p = std::exchange(party_, nullptr))
      p->unlock(nullptr);
  }

private:
  template <class>
  friend class basic_alock;

  explicit alock_guard(detail::alock_party* p) noexcept : party_(p) {}

  detail::alock_party* party_ = nullptr;
};

/// A lock in the memory of one node that every node may take, which is asymmetric (Baran,
/// Nelson-Slivon, Tseng, Palmieri, "ALock: Asymmetric Lock Primitive for RDMA Systems", SPAA 2024):
/// the node where it lies takes it by its CPU, without its device; others by their devices, without
/// that CPU. Each cohort has a queue, first come, first served, and Peterson's algorithm is between
/// the two queues' heads.
///
///     alock lock(memory, where);
///     {
///       alock_guard held = co_await lock.async_lock(asio::use_awaitable);
///       // ...
///     }
///
/// It needs no more than what devices keep to: reads and writes of 8 bytes are whole for each other
/// whoever makes them, and so are the atomic operations of one side, but not of a CPU and a device
/// on one word (table 1 of Nelson-Slivon, Tseng, Palmieri, "Technical Report: Asymmetric Mutual
/// Exclusion for RDMA", arXiv 2208.09540). So each word is changed by atomic operations of one side
/// only.
///
/// A free lock takes a local party no round trip and a remote one two, and one to give back. Who
/// waits for a party of its own cohort is woken by it: a remote one by a message of the lock's
/// node, whose program must run its context for that and join both at one object; else, and for the
/// other cohort, it looks again by itself, after random times of up to 16 milliseconds, or of up to
/// one for the other cohort. No handler waits.
///
/// *Order.* Who has the lock finds what had completed under it before (for a CPU: as `flushed`); a
/// remote party, in the lock's node, also what remote ones before it had only started, as their
/// devices gave the lock back behind that.
///
/// *Death.* A lock whose holder has died, or somebody who waits for it, is not given to anybody any
/// more, as nobody knows how it left what it protects: who waits, and who comes later, gets
/// `error::owner_dead`. A `global_memory` that is closed, or whose connection to the lock's node
/// fails, is as good as dead there: what it had under way in that node has happened or never will,
/// but it may not know yet, and it may still write in other nodes. That somebody is dead is known
/// when the lock's node knows it, whose program must run its context: at once for a process that
/// ends, else as `connection_options::keep_alive` says. Who lives and keeps the lock is waited for.
///
/// Each acquisition has a descriptor of its own, so coroutines may nest locks and wait. They are
/// asked for 16 at a time, by a message that the lock's node answers, and used again; 512 bytes of
/// its segment for each time. They stay there when a node leaves.
template <class Executor = asio::any_io_executor>
class basic_alock {
public:
  using executor_type = Executor;

  /// The memory must stay. Errors (thrown): `invalid_argument` for a budget of 0.
  basic_alock(basic_global_memory<Executor>& memory, remote_ptr<alock_words> at,
              const alock_options& options = {})
      : memory_(&memory), at_(at), options_(options) {
    if (options.local_budget == 0 || options.remote_budget == 0)
      detail::throw_error(asio::error::invalid_argument, "alock");
  }

  const executor_type& get_executor() const noexcept { return memory_->get_executor(); }

  /// Takes the lock. Signature `void(error_code, alock_guard)`. Errors: `error::owner_dead`; those
  /// of `basic_global_memory`, such as `operation_not_supported` for a lock of another node where
  /// one of the devices has no atomic operations; `not_enough_memory` if the segment has none for
  /// descriptors. Cancellation: all types, until the lock is there. Who gives up stays in the queue
  /// and passes the lock on when it comes; the context has work until then.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_lock(Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code, alock_guard)>(initiate_lock{this}, token);
  }

  /// Gives back a lock, this or another, and tells when others may have it. To be waited for before
  /// the global memory is closed, which would leave the lock to nobody. Signature
  /// `void(error_code)`. Errors: `invalid_argument` if none is held; that of the connection: the
  /// lock's node has this one for dead then, or will soon; `error::owner_dead` if who is next has
  /// come but not said who it is, for a second or so, as it has died, though it gets the lock if it
  /// has not. Not cancelled.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_unlock(alock_guard held, Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_unlock{this}, token,
                                                         std::move(held));
  }

private:
  struct lock_result {
    static std::tuple<alock_guard> arguments(detail::alock_operation& op) {
      return {alock_guard(std::exchange(op.granted, nullptr))};
    }
  };

  struct initiation {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return self->get_executor(); }
    basic_alock* self;
  };

  struct initiate_lock : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::alock_operation, lock_result, 0>(
          this->self->memory_->locks(), this->self->memory_->io_, h,
          [this](auto& op) {
            op.at = detail::remote_word(this->self->at_.bits());
            op.local_budget = this->self->options_.local_budget;
            op.remote_budget = this->self->options_.remote_budget;
            return true;
          },
          [](auto& locks, auto& op) { return locks.start(op); });
    }
  };

  struct initiate_unlock : initiation {
    template <class Handler>
    void operator()(Handler&& handler, alock_guard held) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::alock_operation, detail::no_result, 0>(
          this->self->memory_->locks(), this->self->memory_->io_, h, [](auto&) { return true; },
          [&](auto& locks, auto& op) {
            return locks.start_unlock(op, std::exchange(held.party_, nullptr));
          });
    }
  };

  basic_global_memory<Executor>* memory_;
  remote_ptr<alock_words> at_;
  alock_options options_;
};

using alock = basic_alock<>;

} // namespace asio_rdma
