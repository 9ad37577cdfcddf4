// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue_options.hpp>
#include <asio_rdma/detail/counter.hpp>
#include <asio_rdma/detail/waker.hpp>
#include <asio_rdma/detail/work_queue.hpp>
#include <asio_rdma/device.hpp>
#include <boost/asio/execution_context.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace asio_rdma::detail {

class completion_service;

/// A completion queue and its channel, and the one runner that takes completions from it.
///
/// At any time the runner is in one of four states. `idle`: nothing is outstanding and nobody
/// looks. `armed`: the device will raise an event, which makes it active. `queued`: it will be
/// active when the execution context comes to it. `active`: it runs there, or a thread that blocks
/// (`drive`) has its role for a moment. Only one thread at a time has it. If several threads may
/// run the context, the runner gives the role up before it calls a handler: handlers begin in the
/// order of their completions, each on the next thread that has nothing to do.
class completion_queue_impl : public std::enable_shared_from_this<completion_queue_impl> {
public:
  /// Called by the service; `mode` other than `manual` watches the channel.
  completion_queue_impl(completion_service& service, const device& d,
                        const completion_queue_options& options, error_code& ec);
  /// Adopts a queue and the channel that it was made with. They stay the caller's until `own`.
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

  /// Sets entries aside for a queue pair or a shared receive queue; false if too few are left.
  bool reserve(std::uint32_t entries);
  void unreserve(std::uint32_t entries) noexcept;

  /// Around the start of each operation: counts it as work of the execution context, and once it
  /// is posted sees to it that somebody looks for its completion.
  void operation_starting() {
    if ((outstanding_.fetch_add(1) & holds_work) == 0) [[unlikely]]
      hold_work();
  }
  void operation_started() {
    if (state_.load() == state::idle)
      attend();
  }
  void operation_not_started() noexcept { leave_to_runner(1); }

  /// Likewise for an operation that is looked for, but is no work of the context: the library's own
  /// receives, which would keep an idle program from its end. Each tells, once it has left the
  /// device and before it is done, that from here on it is an operation as others are.
  void background_starting() noexcept { outstanding_.fetch_add(background_one | 1); }
  void background_ending() {
    if ((outstanding_.fetch_sub(background_one) & holds_work) == 0)
      hold_work();
  }

  /// Mode `manual`: runs the handlers of what has completed; gives their number.
  std::size_t poll();

  /// Comes before the first of the library's own operations.
  void expect_internal() noexcept { has_internal_.store(true); }
  /// For a thread that waits for one of these and may not run handlers: does what there is to do of
  /// them, else sleeps until the device, `other` (a descriptor) or its waker tells of something, or
  /// a while has passed.
  void drive(int other, waker& own);
  /// Does what has completed of them, also while the runner is in a handler on another thread; true
  /// if there was something.
  bool run_ready_internal();

  /// When the context shuts down, and no thread runs it any more: does what there is to do of the
  /// library's own operations. If that was nothing, the channel's descriptor tells of more; -1 if
  /// there is none.
  struct last_found {
    bool worked = false;
    int descriptor = -1;
  };
  last_found last_look();

  /// Takes every completion that is in the queue now. After the destruction of a queue pair this
  /// leaves none of its work requests in it.
  void drain();
  /// From here on the completions of this queue pair are dropped: its operations have ended, though
  /// the device has it still; until it has gone, and its last completions were drained.
  void abandon(std::uint32_t queue_pair) noexcept;
  void forget(std::uint32_t queue_pair) noexcept;
  /// Lets the runner complete these operations, which no longer belong to the device.
  void complete(operation_list& done);
  /// Takes back what was given to `complete`; false if it is disposed of already, or about to be.
  bool take_back(const operation& op);

  /// Called when the execution context shuts down: destroys what is ready.
  void shutdown();

private:
  enum class state : std::uint8_t { idle, armed, queued, active };
  static constexpr int poll_batch = 32;
  struct watch;

  // Two counts in one word: all operations in the low half, background ones in the high half. The
  // highest bit says that the context has been given work for the operations that are not in the
  // background. An operation that does not find the bit brings work of its own, so no operation
  // relies on work that another thread is only about to add.
  static constexpr std::uint64_t background_one = std::uint64_t(1) << 32;
  static constexpr std::uint64_t holds_work = std::uint64_t(1) << 63;
  static constexpr bool all_background(std::uint64_t counts) noexcept {
    return (counts & ~holds_work) >> 32 == (counts & (background_one - 1));
  }

  /// Operations that are taken to be run, and how many have been. At its end it counts these, and
  /// what one that throws has left behind goes back in front.
  struct batch {
    completion_queue_impl& queue;
    void (completion_queue_impl::*count)(std::size_t) noexcept;
    operation_list operations = {};
    std::size_t done = 0;

    ~batch();
  };

  // A constructor that delegates to this one and throws leaves what it has made to the destructor.
  completion_queue_impl(completion_service& service, const device& d,
                        const completion_queue_options& options);
  void open_watch(error_code& ec);
  void hold_work() noexcept;
  void operations_done(std::size_t n) noexcept;
  void leave_to_runner(std::size_t n) noexcept;
  void attend();
  void attend_to_ready();
  void schedule();
  void queue_runner();
  bool become_active(state from);
  bool on_readable();
  void take_event();
  void read_event();
  std::size_t harvest(unsigned polls) noexcept;
  int take_completions(unsigned polls);
  void on_poll_failure() noexcept;
  int drop_abandoned(ibv_wc* completions, int n) const noexcept;
  std::size_t run_ready(disposal how);
  std::size_t hand_out_ready(bool& role_given_up);
  void put_back(operation_list& operations) noexcept;
  void take_ready(batch& b);
  void run_internal(batch& b);
  void operations_done_outside(std::size_t n) noexcept;
  bool look_and_arm(bool& worked);
  void run();
  bool spun_enough();
  bool arm();
  bool sleep();
  bool rest();
  bool nothing_to_look_for(std::uint64_t counts) const noexcept;
  bool any_ready();
  bool has_handlers();

  completion_service& service_;
  asio::execution_context& context_;
  device device_;
  completion_queue_options options_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ownership owns_ = ownership::take;
  bool watched_ = false; // the channel's events are this object's

  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<state> state_{state::idle};
  std::atomic<bool> notified_{false};
  bool notify_requested_ = false;                                   // the runner's
  unsigned unacknowledged_events_ = 0;                              // the runner's
  std::optional<std::chrono::steady_clock::time_point> spin_until_; // the runner's
  std::shared_ptr<completion_queue_impl> self_;                     // of who becomes active
  std::atomic<std::uint32_t> blocked_{0};                           // threads in `drive`
  std::atomic<std::size_t> left_to_runner_{0}; // operations that are done, but for their count
  std::atomic<bool> runner_queued_{false};     // also when its role is another's
  std::shared_ptr<completion_queue_impl> queued_self_; // as long

  mutex internal_mutex_; // the operations of the library's own, to keep their order
  mutex mutex_;          // polling, and the lists below
  operation_list ready_;
  std::uint32_t reserved_ = 0;
  std::size_t reservations_ = 0;
  bool stopped_ = false;
  bool poll_failed_ = false;
  std::vector<std::uint32_t> abandoned_; // numbers of queue pairs; has room for all reservations

  counter polls_, arms_, events_, completions_;
  std::atomic<bool> has_internal_{false};
  std::unique_ptr<watch> watch_;
};

} // namespace asio_rdma::detail
