// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/device.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/intrusive/list.hpp>

#include "core/tally.hpp"
#include "core/waker.hpp"
#include "queues/work_queue.hpp"

#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

class completion_service;

/// A queue pair that has ended, and that the device has refused to destroy. Owned by what keeps it.
struct abandoned_queue_pair
    : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>> {
  std::uint32_t number = 0;
};

class completion_queue_impl;

/// The completion queues of a context that may use its services. The last owner of a queue may be
/// an operation or a queue pair that another context ends, on a thread of that one, while the
/// queue's own context is being destroyed.
class open_queues {
public:
  /// Returns false if the queues have been closed.
  bool add(completion_queue_impl& q);
  /// For a queue that ends. If it is open, calls `f`, which stops its use of the services. The
  /// queues are not closed meanwhile.
  template <class Function>
  void remove(completion_queue_impl& q, Function&& f);
  /// The context shuts down: stops the watches of the queues.
  void close();

private:
  std::mutex mutex_;
  std::vector<completion_queue_impl*> all_;
  bool closed_ = false;
};

/// A completion queue with its channel and its one runner, which takes completions from the queue.
///
/// The runner is in one of four states. `idle`: no operation is outstanding, and no thread polls.
/// `armed`: an event of the device will make the runner active. `queued`: the execution context
/// will run the runner. `active`: the runner runs on the context, or a blocking thread (`drive`)
/// has its role for a moment. Only one thread at a time has the role. If several threads may run
/// the context, the runner gives up the role before it calls a handler. Then handlers begin in the
/// order of their completions, each on the next thread without work. Handlers of a strand go to it
/// in that order.
class completion_queue_impl : public std::enable_shared_from_this<completion_queue_impl> {
public:
  /// Called by the service. If `mode` is not `manual`, the channel is watched.
  completion_queue_impl(completion_service& service, const device& d,
                        const completion_queue_options& options, error_code& ec);
  /// Adopts a queue and its channel, which stay the caller's until `own`.
  completion_queue_impl(completion_service& service, const device& d,
                        const completion_queue_options& options, ibv_cq* cq, error_code& ec);
  void own(ownership owns) noexcept { owns_ = owns; }
  completion_queue_impl(const completion_queue_impl&) = delete;
  ~completion_queue_impl();

  asio::execution_context& context() const noexcept { return context_; }
  const device& get_device() const noexcept { return device_; }
  ibv_cq* native_handle() const noexcept { return cq_; }
  const completion_queue_options& options() const noexcept { return options_; }
  completion_counters counters() const noexcept;

  /// Reserves entries for a queue pair or a shared receive queue. Returns false if there are not
  /// enough.
  bool reserve(std::uint32_t entries) noexcept;
  void unreserve(std::uint32_t entries) noexcept;

  /// Called before and after each operation is started. `operation_starting` counts the operation
  /// as work of the execution context. `operation_started` makes sure that its completion will be
  /// polled.
  void operation_starting() {
    if ((outstanding_.fetch_add(1) & holds_work) == 0) [[unlikely]]
      hold_work();
  }
  /// The same for an operation of a queue. If a handler that the runner calls starts it, the runner
  /// adds it at the end of its pass. Until then no other thread can count it as done. Any thread
  /// may count internal operations as done.
  void operation_starting(const operation& op) {
    if (is_in_pass() && !op.internal) [[likely]]
      ++started_in_pass_;
    else
      operation_starting_elsewhere();
  }
  /// Called when an operation that `continues` is starting: `collect` may take it.
  void note_step(const operation& op) noexcept;
  void operation_started() {
    if (state_.load() == state::idle)
      attend();
  }
  void operation_not_started(const operation& op) noexcept {
    if (is_in_pass() && !op.internal)
      --started_in_pass_;
    else
      leave_to_runner(1);
  }

  /// Called instead of `operation_starting` for an operation that does not count as work: a receive
  /// of the library's own, which must not keep an idle program running. `background_ending` makes
  /// it count as work, after the device has completed the operation and before the operation is
  /// disposed of.
  void background_starting() noexcept { outstanding_.fetch_add(background_one | 1); }
  void background_ending() {
    const std::uint64_t before = outstanding_.fetch_sub(background_one);
    assert((before & ~holds_work) >= background_one);
    if ((before & holds_work) == 0)
      hold_work();
  }

  /// Locks a mutex of this queue or of an object that uses it. The thread that takes completions or
  /// calls handlers now becomes its owner, if no other thread may run the context.
  void lock(biased_mutex& m) const noexcept { is_in_pass() ? m.lock_as_owner() : m.lock(); }

  /// In mode `manual`: runs the handlers of completed operations. Returns their number.
  std::size_t poll();

  /// Called before the first internal operation.
  void expect_internal() noexcept { has_internal_.store(true); }
  /// For a thread that waits for an internal operation and must not run handlers. Disposes of the
  /// completed internal operations. If there are none, sleeps for a short time, or until the
  /// device, `other` (a descriptor) or the thread's waker wakes it.
  void drive(int other, waker& own);
  /// Disposes of the completed internal operations, also while the runner is in a handler on
  /// another thread. Returns true if there were any.
  bool run_ready_internal();

  /// For the shutdown of the context, when no thread runs it: disposes of the completed internal
  /// operations. If there were none, `descriptor` becomes readable when there may be some; -1 if
  /// there is no descriptor.
  struct last_found {
    bool worked = false;
    int descriptor = -1;
  };
  last_found last_look();
  /// Called before the first `last_look`. Afterwards `was_stopped` says whether the context was
  /// stopped since the queue's work began.
  void on_leaving() noexcept;
  bool was_stopped() const noexcept { return was_stopped_; }

  /// Takes all completions that are in the queue now. Called after a queue pair is destroyed, so
  /// that none of its work requests is left. Returns false if the queue cannot be polled.
  bool drain() noexcept;
  /// `abandon`: from now on the completions of this queue pair are dropped, because its operations
  /// have ended although the device still has it. `forget`: the queue pair has been destroyed and
  /// its last completions have been drained.
  void abandon(abandoned_queue_pair& q) noexcept;
  void forget(abandoned_queue_pair& q) noexcept;
  /// Completes operations that the device no longer uses, by the runner.
  void complete(operation_list& done);
  /// Does the same without a lock, if this thread is the runner and calls a handler. Otherwise
  /// returns false. No operation is disposed of before the caller returns to the runner. If several
  /// threads may run the context, only the next step of one of Asio's loops waits for that.
  bool collect(operation_list& done) noexcept;
  /// Removes an operation that was passed to `complete`. Returns false if it is being disposed of,
  /// or was.
  bool take_back(const operation& op);
  /// Disposes of an internal operation when the handlers that are ready now have run, and those
  /// that they made ready: when a pass of the runner begins with nothing ready, or after the next
  /// pass. In the first case `op.value` is then 1, otherwise 0. The caller has counted the
  /// operation (`operation_starting`). For a thread that blocks, the operation is ready at once.
  void postpone(operation& op);
  /// The number of rounds of handlers that have ended: of passes of the runner that began with
  /// nothing ready. Null if several threads may run the context: others may still be in handlers.
  const tally* rounds() const noexcept;

  /// Called at the shutdown of the execution context. Destroys the ready operations.
  void shutdown();

private:
  friend class open_queues;

  enum class state : std::uint8_t { idle, armed, queued, active };
  static constexpr int poll_batch = 32;
  /// The most handlers of a pass, which begins with a poll.
  static constexpr std::size_t operations_per_pass = 64;
  struct watch;
  struct group;

  // Two counters in one word: all operations in the low half, background ones in the high half. The
  // highest bit is set while the context counts work for the operations that are not in the
  // background. An operation that does not find the bit set adds work itself, so no operation
  // relies on work that another thread has yet to add.
  static constexpr std::uint64_t background_one = std::uint64_t(1) << 32;
  static constexpr std::uint64_t holds_work = std::uint64_t(1) << 63;
  static constexpr bool all_background(std::uint64_t counts) noexcept {
    return (counts & ~holds_work) >> 32 == (counts & (background_one - 1));
  }

  /// The operations of a pass: those that were run, those of them that are internal, and the
  /// completions that were found. `stopped`: a handler has run, and the context was stopped.
  struct pass_counts {
    std::size_t all = 0, internal = 0, found = 0;
    bool stopped = false;
  };
  /// Operations that were taken to be run, and the number of those that have run. The destructor
  /// counts these, and puts the rest back in front if an operation has thrown.
  struct batch {
    completion_queue_impl& queue;
    void (completion_queue_impl::*count)(std::size_t) noexcept;
    operation_list operations = {};
    std::size_t done = 0;
    std::size_t internal = 0; // of `done`
    // If several threads may run the context: the run of it that calls a handler, the polls until
    // the role was given up, and, if the handler is that of a step of a loop, the next step, once
    // it starts.
    const void* context_run = nullptr;
    std::uint64_t polls = 0;
    const operation* step = nullptr;

    bool may_collect(const operation& op) const noexcept;

    ~batch();
  };

  /// While it exists, `complete` adds the user's operations to the batch, without a lock, if this
  /// thread calls it.
  class collecting {
  public:
    explicit collecting(batch& b) noexcept : before_(std::exchange(collecting_batch, &b)) {}
    collecting(const collecting&) = delete;
    ~collecting() { collecting_batch = before_; }

  private:
    batch* before_;
  };

  /// The innermost batch that this thread runs, while it collects: a handler may run another queue.
  static constinit thread_local batch* collecting_batch;

  // If a constructor that delegates to this one throws, the destructor releases what it has made.
  completion_queue_impl(completion_service& service, const device& d,
                        const completion_queue_options& options);
  void open_watch(error_code& ec);
  void hold_work() noexcept;
  void operation_starting_elsewhere();
  bool is_in_pass() const noexcept {
    return runner_thread_.load(std::memory_order_relaxed) == thread_mark();
  }
  void operations_done(std::size_t n) noexcept;
  void end_pass(std::size_t done) noexcept;
  void leave_to_runner(std::size_t n) noexcept;
  void attend();
  void attend_to_ready();
  void schedule();
  void queue_runner();
  bool reserve_turns(std::size_t n) noexcept;
  bool become_active(state from);
  bool become_active(state from, std::shared_ptr<completion_queue_impl>& self) noexcept;
  bool on_readable();
  bool take_event();
  bool read_event();
  std::size_t harvest(unsigned polls) noexcept;
  std::size_t found_or_failed(int found) noexcept;
  int take_completions(unsigned polls) noexcept;
  void on_loss() noexcept;
  int drop_abandoned(ibv_wc* completions, int n) const noexcept;
  template <disposal How>
  pass_counts run_pass(unsigned polls);
  pass_counts hand_out_pass(unsigned polls, std::uint64_t of_group, bool& role_given_up);
  void hand_out(group& next);
  void queue_group(group& next);
  void run_steps(batch& b, operation& first);
  static bool post_to_strands(batch& b);
  void put_back(operation_list& operations) noexcept;
  void drop(operation_list& dropped) noexcept;
  int take_ready(batch& b, unsigned polls);
  void run_internal(batch& b);
  void ready_changed() noexcept {
    has_ready_.store(!ready_.empty() || !next_.empty(), std::memory_order_release);
  }
  void operations_done_outside(std::size_t n) noexcept;
  bool look_and_arm(bool& worked);
  int event_descriptor() const noexcept;
  void run(std::uint64_t of_group = 0);
  bool spun_enough();
  bool arm();
  bool sleep();
  bool rest();
  bool nothing_to_look_for(std::uint64_t counts) const noexcept;
  bool any_ready();
  bool has_handlers();
  void begin_pass() noexcept;
  void end_round(bool quiet) noexcept;
  bool end_quiet_round() noexcept;

  completion_service& service_;
  const std::shared_ptr<open_queues> open_queues_;
  asio::execution_context& context_;
  device device_;
  completion_queue_options options_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ownership owns_ = ownership::take;
  bool watched_ = false; // the channel is read by this object

  // Not guarded by `mutex_`: another thread may open a queue pair for the thread that polls.
  std::atomic<std::uint32_t> reserved_{0};
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<state> state_{state::idle};
  std::atomic<bool> notified_{false};
  std::atomic<bool> lost_{false};      // no completions and no events will come any more
  bool notify_requested_ = false;      // owned by the runner
  unsigned unacknowledged_events_ = 0; // owned by the runner
  // The one thread of the context while it is in `run_pass`, and the operations that its handlers
  // have started: they are not yet in `outstanding_`.
  std::atomic<const void*> runner_thread_{nullptr};
  std::size_t started_in_pass_ = 0;
  std::optional<std::chrono::steady_clock::time_point> spin_until_; // owned by the runner
  std::shared_ptr<completion_queue_impl> self_;                     // set while the runner is
                                                                    // active
  std::atomic<std::uint32_t> blocked_{0};                           // threads that are in `drive`
  std::atomic<std::size_t> left_to_runner_{0}; // completed operations that the runner has to count
  std::atomic<std::size_t> turns_queued_{0};   // also while another thread has the role
  std::size_t in_last_group_ = 1;              // turns and handlers; owned by the runner
  std::uint64_t last_group_ = 0;               // its number; owned by the runner
  std::atomic<bool> found_nothing_{true};      // a turn of the last group; set by the runner

  biased_mutex internal_mutex_; // guards internal operations, to keep their order
  biased_mutex mutex_;          // guards polling and the lists below
  operation_list ready_;
  operation_list next_; // before `ready_`, without internal ones and those of strands; only if
                        // several threads may run the context
  operation_list postponed_, postponed_before_; // in this pass, and in the one before
  bool stopped_ = false;
  bool was_stopped_ = false;
  boost::intrusive::list<abandoned_queue_pair, boost::intrusive::constant_time_size<false>>
      abandoned_;

  tally polls_, arms_, events_, completions_, rounds_;
  std::atomic<bool> has_internal_{false};
  std::atomic<bool> has_ready_{false}; // changed with the mutex locked
  std::atomic<bool> has_postponed_{false};
  std::unique_ptr<watch> watch_;
};

} // namespace asio_rdma::detail
