// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <array>
#include <cassert>
#include <cstdint>
#include <span>

namespace asio_rdma::detail {

/// How a party takes a lock: `local` by the CPU of the lock's machine, `remote` by the device. The
/// values are those of the word `victim`.
enum class alock_cohort : std::uint8_t { local, remote };

/// A word of the lock, or of a descriptor. In an unused lock all words are 0. Only the CPU changes
/// the local tail and only the device changes the remote tail, because atomic operations of the CPU
/// and of the device are not atomic with respect to each other. The victim is only read and
/// written.
enum class alock_word : std::uint8_t {
  own_tail,   ///< The tail of the cohort's queue: its last descriptor, `alock_free` or
              ///< `alock_abandoned`.
  other_tail, ///< The tail of the other cohort's queue.
  victim,     ///< The cohort that was the last to contend; it yields to the other cohort.
  next,       ///< In a descriptor: the successor in the queue, or 0.
  turn        ///< In a descriptor: a value of `alock_turn`.
};

inline constexpr std::uint64_t alock_free = 0;
/// A party of the queue has died: its cohort keeps the lock for ever.
inline constexpr std::uint64_t alock_abandoned = ~std::uint64_t(0);

/// The values that a predecessor in the queue writes to `turn`. `contend` + n passes on the lock
/// for n critical sections in a row.
namespace alock_turn {
inline constexpr std::uint64_t wait = 0;
inline constexpr std::uint64_t contend = 1; ///< The party must contend with the other cohort.
inline constexpr std::uint64_t dead = ~std::uint64_t(0);
} // namespace alock_turn

struct alock_access {
  enum class kind : std::uint8_t { read, write, compare_exchange };
  kind what = kind::read;
  alock_word word = alock_word::own_tail;
  std::uint64_t descriptor = 0; ///< The owner of the word, if it is a word of a descriptor.
  std::uint64_t expected = 0;   ///< `compare_exchange`: the value to be replaced.
  std::uint64_t value = 0;      ///< The value to be written.
  std::uint64_t seen = 0;       ///< The driver's answer: the previous value. Unused by `write`.
};

/// The next step of the driver.
struct alock_action {
  enum class kind : std::uint8_t {
    none,
    access,  ///< Carry out the accesses of `chain` in order; then call `on_done`.
    wait,    ///< Call `look` when another driver's `wake` arrives. Without wake-ups, treat as
             ///< `poll`.
    poll,    ///< Call `look` after a delay.
    granted, ///< The lock is held until `unlock`.
    failed,  ///< The acquisition has failed with `ec`. More actions follow.
    wake,    ///< Make the driver of `descriptor` call `look`, if it can be reached.
    ended    ///< No action follows, with or without an error; see `reusable`.
  };
  kind what = kind::none;
  std::span<alock_access> chain = {};
  std::uint64_t descriptor = 0;
  error_code ec = {};
};

/// One acquisition of an asymmetric lock (ALock, SPAA 2024). Each cohort has a queue (that of
/// Mellor-Crummey and Scott), and the heads of the two queues contend by Peterson's algorithm. A
/// cohort passes the lock on within itself at most `budget` times in a row, then it contends again.
/// test/model/alock.pml is a model of this class.
///
/// Does no I/O: after each event the driver carries out the actions of `next` until that returns
/// `none`, `wait`, `poll` or `ended`. An uncontended acquisition takes two chains: one enqueues the
/// descriptor, the other writes the victim and reads the other tail.
///
/// If a party dies while it holds the lock or waits for it, the lock is lost for ever. All present
/// and later waiters get `error::owner_dead`. The driver detects the death (`waits_for`).
class alock_protocol {
public:
  /// The descriptor belongs to this acquisition alone, and is neither `alock_free` nor
  /// `alock_abandoned`. The budget is at least 1.
  alock_protocol(alock_cohort cohort, std::uint64_t descriptor, std::uint32_t budget) noexcept
      : budget_(budget), me_(descriptor), cohort_(cohort) {
    assert(budget != 0 && descriptor != alock_free && descriptor != alock_abandoned);
  }

  alock_action next() noexcept;

  /// Reports that the chain has completed or failed. After a failure it is unknown which accesses
  /// have taken effect.
  void on_done(const error_code& ec) noexcept;
  /// Reports that the chain was not started and never will be. Returns true if this acquisition is
  /// in no queue. Otherwise its successors get the lock only when this party is known to be dead.
  bool on_refused(const error_code& ec) noexcept;
  /// Makes `next` read again the word that the acquisition waits for.
  void look() noexcept { look_ = true; }
  /// Cancels the acquisition unless `granted` or `failed` has been returned; neither is returned
  /// afterwards. A cancelled acquisition may stay in the queue to pass the lock on. Returns false
  /// if it was too late.
  bool cancel() noexcept;
  /// Releases the lock, after `granted`.
  void unlock() noexcept;

  /// The descriptor of the party that this acquisition depends on, or 0.
  std::uint64_t waits_for() const noexcept;
  /// Reports that the party of `descriptor` has died and that no access of it will take effect any
  /// more.
  void on_dead(std::uint64_t descriptor) noexcept {
    dead_ = descriptor;
    look();
  }

  bool held() const noexcept { return state_ == state::held; }
  /// Whether the acquisition waits for its successor to link itself. A successor that has died
  /// never does.
  bool leaves() const noexcept { return state_ == state::successor; }
  /// After `ended`: whether no party will write to the descriptor any more.
  bool reusable() const noexcept { return reusable_; }

private:
  enum class state : std::uint8_t {
    enter,   // enqueue the descriptor
    link,    // link the predecessor to this descriptor
    turn,    // wait for the predecessor to write `turn`
    contend, // first look at the other cohort
    other,   // wait for the other cohort
    granted, // `next` has to return `granted`
    held,
    leave,     // leave the queue, unless there is a successor
    successor, // wait for the successor to link itself
    hand_over, // write `turn` of the successor
    wake,      // `next` has to return `wake`
    ended
  };

  static constexpr alock_access read(alock_word word, std::uint64_t descriptor = 0) noexcept {
    return {.what = alock_access::kind::read, .word = word, .descriptor = descriptor};
  }
  static constexpr alock_access write(alock_word word, std::uint64_t value,
                                      std::uint64_t descriptor = 0) noexcept {
    return {
        .what = alock_access::kind::write, .word = word, .descriptor = descriptor, .value = value};
  }
  static constexpr alock_access exchange_tail(std::uint64_t expected,
                                              std::uint64_t value) noexcept {
    return {.what = alock_access::kind::compare_exchange,
            .word = alock_word::own_tail,
            .expected = expected,
            .value = value};
  }

  template <class... Accesses>
  alock_action access(const Accesses&... accesses) noexcept;
  void on_entered(std::uint64_t before) noexcept;
  void on_turn(std::uint64_t turn) noexcept;
  void on_other(std::uint64_t tail, bool other_is_victim) noexcept;
  void on_successor(std::uint64_t next) noexcept;
  void won(std::uint64_t turn) noexcept;
  void leave(std::uint64_t turn) noexcept;
  void end(const error_code& ec, bool reusable) noexcept;

  std::array<alock_access, 3> chain_;
  std::uint32_t budget_;
  std::uint64_t me_;
  std::uint64_t other_ = 0; // predecessor, tail of the other cohort or successor, depending on the
                            // state
  std::uint64_t turn_ = alock_turn::wait;
  std::uint64_t dead_ = 0, known_dead_ = 0; // as reported; as reported before the chain began
  error_code ec_;
  state state_ = state::enter;
  alock_cohort cohort_;
  bool under_way_ = false;
  bool look_ = false;
  bool reported_ = false; // `granted` or `failed` was returned, or must not be
  bool cancelled_ = false;
  bool reusable_ = false;
};

} // namespace asio_rdma::detail
