// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <array>
#include <cstdint>
#include <span>

namespace asio_rdma::detail {

/// Who takes a lock by the CPU of the machine where it is, and who by the device. The values are
/// those of the word `victim`.
enum class alock_cohort : std::uint8_t { local, remote };

/// A word of the lock, or of a descriptor. All are 0 in a lock that nobody has used. The local tail
/// is changed by the CPU only and the remote one by the device only, because the atomic operations
/// of one are not atomic for the other; the victim is only read and written.
enum class alock_word : std::uint8_t {
  own_tail,   ///< Of the cohort's queue: its last descriptor, `alock_free` or `alock_abandoned`.
  other_tail, ///< Of the other cohort's.
  victim,     ///< The cohort that came last to contend, and lets the other go first.
  next,       ///< Of a descriptor: the one behind it, or 0.
  turn        ///< Of a descriptor: `alock_turn`.
};

inline constexpr std::uint64_t alock_free = 0;
/// Somebody in the queue has died: its cohort has the lock for ever.
inline constexpr std::uint64_t alock_abandoned = ~std::uint64_t(0);

/// What the predecessor in a queue hands over; n more is the lock for n critical sections in a row.
namespace alock_turn {
inline constexpr std::uint64_t wait = 0;
inline constexpr std::uint64_t contend = 1; ///< The other cohort's turn, if it wants the lock.
inline constexpr std::uint64_t dead = ~std::uint64_t(0);
} // namespace alock_turn

struct alock_access {
  enum class kind : std::uint8_t { read, write, compare_exchange };
  kind what = kind::read;
  alock_word word = alock_word::own_tail;
  std::uint64_t descriptor = 0; ///< Whose word, if of a descriptor.
  std::uint64_t expected = 0;   ///< `compare_exchange`: exchanges if the word is this.
  std::uint64_t value = 0;      ///< Written.
  std::uint64_t seen = 0;       ///< The driver's answer: what the word was. Not for `write`.
};

/// What the driver is to do.
struct alock_action {
  enum class kind : std::uint8_t {
    none,
    access,  ///< All of `chain`, each after the one before it; then `on_done`.
    wait,    ///< `look` when woken by `wake` of another; where nobody can do that, as `poll`.
    poll,    ///< `look` some time later.
    granted, ///< The lock is held, until `unlock`.
    failed,  ///< It will not be, for `ec`. More actions follow.
    wake,    ///< Let the driver of `descriptor` call `look`, if it can be reached.
    ended    ///< Nothing more follows, after an error or not; see `reusable`.
  };
  kind what = kind::none;
  std::span<alock_access> chain = {};
  std::uint64_t descriptor = 0;
  error_code ec = {};
};

/// One acquisition of a lock that is asymmetric (ALock, SPAA 2024): each cohort has a queue (that
/// of Mellor-Crummey and Scott), and the heads of the queues contend by Peterson's algorithm. A
/// cohort passes the lock on within itself, `budget` times in a row at most, then contends again.
/// test/model/alock.pml is the same as a model.
///
/// Does no I/O: after each event the driver does what `next` says until that is `none`, `wait`,
/// `poll` or `ended`.
/// A free lock takes two chains: into the queue; victim written and other tail read.
///
/// Who dies while it holds the lock or waits for it keeps everybody out, for ever: who waits gets
/// `error::owner_dead`, as does who comes later. The driver finds out who has died (`waits_for`).
class alock_protocol {
public:
  /// The descriptor is nobody else's, and neither `alock_free` nor `alock_abandoned`. The budget is
  /// 1 at least.
  alock_protocol(alock_cohort cohort, std::uint64_t descriptor, std::uint32_t budget) noexcept
      : budget_(budget), me_(descriptor), cohort_(cohort) {}

  alock_action next() noexcept;

  /// The chain is done, or has failed: whether it has happened is not known then.
  void on_done(const error_code& ec) noexcept;
  /// The chain has not been started, and never will be. True if this is in no queue: else nobody
  /// behind it gets the lock, until it is known to be dead.
  bool on_refused(const error_code& ec) noexcept;
  /// Looks whether what is waited for has come.
  void look() noexcept { look_ = true; }
  /// Gives the acquisition up, if neither `granted` nor `failed` has been told; neither will be
  /// then. It may stay in the queue, to pass the lock on. False if it was too late.
  bool cancel() noexcept;
  /// After `granted`.
  void unlock() noexcept;

  /// Whose party must live for this to go on: a descriptor, or 0 for nobody's.
  std::uint64_t waits_for() const noexcept;
  /// Its party has died, and no access of it will happen any more.
  void on_dead(std::uint64_t descriptor) noexcept {
    dead_ = descriptor;
    look();
  }

  bool held() const noexcept { return state_ == state::held; }
  /// Waits for a successor to be linked, which never is if it died before.
  bool leaves() const noexcept { return state_ == state::successor; }
  /// After `ended`: whether nobody will write to the descriptor any more.
  bool reusable() const noexcept { return reusable_; }

private:
  enum class state : std::uint8_t {
    enter,     // into the queue
    link,      // to the one before
    turn,      // comes from the one before
    contend,   // with the other cohort: the first time
    other,     // cohort is waited for
    granted,   // to be told
    held,      //
    leave,     // the queue
    successor, // is in the queue but not linked yet
    hand_over, //
    wake,      // to be told
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
  std::uint64_t other_ = 0; // before me, whose tail is waited for, or behind me
  std::uint64_t turn_ = alock_turn::wait;
  std::uint64_t dead_ = 0, known_dead_ = 0; // told; told before the access under way
  error_code ec_;
  state state_ = state::enter;
  alock_cohort cohort_;
  bool under_way_ = false;
  bool look_ = false;
  bool told_ = false; // the user, or need not be
  bool cancelled_ = false;
  bool reusable_ = false;
};

} // namespace asio_rdma::detail
