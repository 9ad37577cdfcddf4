// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/detail/locks/alock_face.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <asio_rdma/remote_word.hpp>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace asio_rdma {

namespace detail {
struct alock_layout;
} // namespace detail

/// The words of an `alock`. Zeroed memory, as `async_allocate` returns it, is a free lock. Only an
/// `alock` may access the words.
class alignas(64) alock_words {
  friend detail::alock_layout; // the library's only access to the words

  using word = std::uint64_t;
  cpu_atomic<word> local_tail_;
  nic_atomic<word> remote_tail_;
  shared_word<word> victim_;
};

/// The budgets of an `alock`: the number of critical sections that one cohort may have in a row
/// while the other cohort waits, at least 1. A larger budget saves round trips but lets the other
/// cohort wait longer. The options of the party at the head of its cohort's queue apply.
struct alock_options {
  std::uint32_t local_budget = 8;
  std::uint32_t remote_budget = 8;

  /// Each sets the member of its name and returns the options:
  /// `alock_options().set_local_budget(…)`. Calls can be chained.
  ///@{
  alock_options& set_local_budget(std::uint32_t value) {
    return detail::set(*this, local_budget, value);
  }
  alock_options& set_remote_budget(std::uint32_t value) {
    return detail::set(*this, remote_budget, value);
  }
  ///@}
};

/// A held `alock`. The destructor releases the lock. Move-only; false if the guard holds no lock.
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

  /// Starts to release the lock. The release of another node's lock takes up to two round trips, or
  /// longer if the successor is still joining the queue. The context has work until the release is
  /// complete. May be called from any thread.
  void unlock() noexcept {
    if (auto* const p = std::exchange(party_, nullptr))
      p->unlock(nullptr);
  }

private:
  // Only a lock makes guards, and releases them by an operation.
  template <class>
  friend class basic_alock;

  explicit alock_guard(detail::alock_party* p) noexcept : party_(p) {}

  detail::alock_party* party_ = nullptr;
};

/// A lock in the memory of one node that every node may acquire. The lock is asymmetric (Baran,
/// Nelson-Slivon, Tseng, Palmieri, "ALock: Asymmetric Lock Primitive for RDMA Systems", SPAA 2024):
/// the node that hosts it acquires it by its CPU, without its device; other nodes acquire it by
/// their devices, without that CPU. Each cohort has a first-come, first-served queue. Peterson's
/// algorithm decides between the heads of the two queues.
///
///     alock lock(memory, where);
///     {
///       alock_guard held = co_await lock.async_lock(asio::deferred);
///       // ...
///     }
///
/// The lock relies only on guarantees that devices give. Reads and writes of 8 bytes are atomic to
/// each other, whether a CPU or a device performs them. Atomic operations of one side are atomic to
/// each other, but those of a CPU and of a device on one word are not (table 1 of Nelson-Slivon,
/// Tseng, Palmieri, "Technical Report: Asymmetric Mutual Exclusion for RDMA", arXiv 2208.09540). So
/// each word is changed by the atomic operations of one side only.
///
/// To acquire a free lock takes a local party no round trip and a remote party two; a remote party
/// releases it in one. A party that releases the lock wakes its successor in its own cohort. A
/// remote successor of another object is woken by a message through the lock's node. That node's
/// program must run its context, and both parties must be connected to the same object of that
/// node. Without a wake-up a waiting party polls, after random pauses of up to 16 milliseconds, or
/// up to 1 millisecond if it waits for the other cohort. No completion handler blocks.
///
/// *Order.* The holder sees every operation that completed under the lock before (for a CPU: with
/// visibility `flushed`). In the memory of the lock's node, a remote holder also sees operations
/// that earlier remote holders only started, because their devices released the lock after these
/// operations; except for atomic operations, if the node's device carries them out by PCIe
/// (IBV_ATOMIC_GLOB). Acquisitions of another node may enter the queue in another order than they
/// were started, because their accesses may overtake each other.
///
/// *Death.* If the holder of a lock or a party that waits for it dies, the lock is never granted
/// again, because the state of the protected data is unknown. Waiting and later acquisitions fail
/// with `error::owner_dead`. A `global_memory` that is closed, or whose connection to the lock's
/// node fails, counts as dead there. Its outstanding operations on that node have happened or never
/// will. The object may not know yet that it counts as dead, and may still write to other nodes.
/// The lock's node, whose program must run its context, detects a death at once if the process
/// terminates, otherwise within the time that `connection_options::keep_alive` describes. There is
/// no timeout for a live holder.
///
/// Each acquisition has a descriptor of its own, so coroutines may nest locks and wait. A node
/// requests descriptors 16 at a time by a message to the lock's node, and reuses them. A request
/// takes 512 bytes of the lock's segment, which stay allocated when the requesting node leaves.
template <class Executor = asio::any_io_executor>
class basic_alock {
public:
  using executor_type = Executor;

  /// `memory` must outlive this object. Errors (thrown): `invalid_argument` for a budget of 0.
  basic_alock(basic_global_memory<Executor>& memory, remote_ptr<alock_words> at,
              const alock_options& options = {})
      : memory_(&memory), at_(at), options_(options) {
    if (options.local_budget == 0 || options.remote_budget == 0)
      detail::throw_error(asio::error::invalid_argument, "alock");
  }

  const executor_type& get_executor() const noexcept { return memory_->get_executor(); }

  /// Acquires the lock. Signature `void(error_code, alock_guard)`. Errors: `error::owner_dead`;
  /// those of `basic_global_memory`, such as `operation_not_supported` for a lock of another node
  /// where one of the devices has no atomic operations; `no_memory` if the segment has no
  /// memory for descriptors. Cancellation: all types, until the lock is granted. A cancelled
  /// acquisition stays queued; when it reaches the head of the queue, it passes the lock to its
  /// successor. The context has work until then.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_lock(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code, alock_guard)>(initiate_lock{this}, token);
  }

  /// Releases a lock, of this object or of another one. The operation completes when other parties
  /// may have the lock. Wait for its completion before the global memory is closed; otherwise the
  /// lock is never granted again. Signature `void(error_code)`. Errors: `invalid_argument` if
  /// `held` is empty; the error of the connection, after which the lock's node considers this party
  /// dead or soon will; `error::owner_dead` if a successor has entered the queue but has not linked
  /// itself within about one second, because it probably died. A successor that links itself later
  /// still gets the lock. Cancellation: none.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_unlock(alock_guard held, Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(initiate_unlock{this}, token,
                                                        std::move(held));
  }

private:
  struct lock_result {
    static constexpr const char* name = "async_lock"; // for handler tracking
    static std::tuple<alock_guard> arguments(detail::alock_operation& op) {
      return {alock_guard(std::exchange(op.granted, nullptr))};
    }
  };

  using initiation = detail::initiation<basic_alock>;

  struct initiate_lock : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::alock_operation, lock_result, 0>(
          detail::locks_of(this->self->memory_->impl_.get()), this->self->memory_->io_, h,
          [this](auto& op) {
            op.at = detail::remote_word(this->self->at_.bits());
            op.local_budget = this->self->options_.local_budget;
            op.remote_budget = this->self->options_.remote_budget;
            return true;
          },
          [](detail::alock_view& locks, auto& op) { return detail::start(locks, op); });
    }
  };

  struct initiate_unlock : initiation {
    template <class Handler>
    void operator()(Handler&& handler, alock_guard held) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::alock_operation, detail::no_result, 0>(
          detail::locks_of(this->self->memory_->impl_.get()), this->self->memory_->io_, h,
          [](auto&) { return true; },
          [&](detail::alock_view& locks, auto& op) {
            return detail::start_unlock(locks, op, std::exchange(held.party_, nullptr));
          });
    }
  };

  basic_global_memory<Executor>* memory_;
  remote_ptr<alock_words> at_;
  alock_options options_;
};

using alock = basic_alock<>;

} // namespace asio_rdma
