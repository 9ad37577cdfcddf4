// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_COMPLETION_QUEUE_HPP
#define SOFT_DEVICE_COMPLETION_QUEUE_HPP

#include "device/memory.hpp"
#include "device/objects.hpp"
#include "engine/engine.hpp"
#include "engine/spin_mutex.hpp"

#include <atomic>
#include <memory>

namespace soft {

/// Data of a completion that the program's poll copies to its place, as mlx5's library does.
struct late_copy {
  static constexpr unsigned most_bytes = 32, most_parts = 4;
  unsigned count = 0; ///< of parts; 0: there is nothing to copy
  span parts[most_parts];
  std::byte data[most_bytes];

  void carry_out() noexcept {
    const std::byte* from = data;
    for (unsigned i = 0; i < count; from += parts[i++].bytes)
      std::memcpy(parts[i].data, from, parts[i].bytes);
    count = 0;
  }
};

/// A ring of completions: the engine pushes, the program polls.
struct completion_queue : ibv_cq_ex {
  counted<&resource_counts::completion_queues> count;

  /// `copies`: its completions may carry data.
  completion_queue(unsigned capacity, soft::channel* events, bool copies)
      : events_to(events),
        slots_(new ibv_wc[capacity]),
        copies_(copies ? new late_copy[capacity] : nullptr),
        capacity_(capacity) {}

  static completion_queue& of(ibv_cq* q) noexcept {
    return *static_cast<completion_queue*>(reinterpret_cast<ibv_cq_ex*>(q));
  }
  ibv_cq* base() noexcept { return reinterpret_cast<ibv_cq*>(static_cast<ibv_cq_ex*>(this)); }

  // ---- with the engine locked
  /// `solicited`: the completion is that of a solicited message, or of a failure
  /// (ibv_req_notify_cq(3)).
  /// False: the queue has overflowed, now or before. It takes no completion any more.
  bool push(const ibv_wc& wc, bool solicited);
  bool takes_data() const noexcept { return copies_ != nullptr; }
  /// The data that the next completion brings, if `takes_data`; or nullptr: the queue is full.
  late_copy* data_of_next() noexcept;
  /// Drops the completions of a queue pair.
  void drop(std::uint32_t qp_num);
  /// Errors: EINVAL, more completions are in the queue.
  int resize(unsigned capacity);
  /// Drops the events that are not raised yet.
  void drop_events();
  std::atomic<int> users{0}; ///< queue pairs
  int vector = 0;            ///< the completion vector that it was made with

  // ---- from any thread
  int poll(int most, ibv_wc* to) noexcept;
  /// A request for any completion stays one (InfiniBand specification, C11-32).
  void arm(bool solicited_only) noexcept {
    int unarmed = none;
    if (!solicited_only)
      armed_.store(any);
    else
      armed_.compare_exchange_strong(unarmed, only_solicited);
    if (events_to != nullptr)
      events_to->events.prepare_wait();
  }
  /// The wires of the queue pairs that receive to this queue.
  visited_descriptors& wires() noexcept { return events_to != nullptr ? events_to->wires : wires_; }

  /// Polling by ibv_start_poll(3): from `start` to `end` other threads that call `start` wait.
  int start() noexcept;
  int next() noexcept;
  void end() noexcept { session_.unlock(); }
  const ibv_wc& at_poll() const noexcept { return read_; }

  acknowledged_events completions_got, events_got;
  soft::channel* const events_to; ///< or nullptr; the program may write `ibv_cq::channel`

private:
  enum arming : int { none, only_solicited, any };
  void notify(bool solicited);
  void raise_events();
  bool find_more() noexcept;
  bool visit_or_yield(unsigned polls) noexcept;

  // An event costs system calls, and those of a few requests come together: it is raised when the
  // queue pairs that are ready have had their turns.
  struct raising final : task {
    explicit raising(completion_queue& q) : queue(q) {}
    void run() override { queue.raise_events(); }
    completion_queue& queue;
  };

  raising raising_{*this};
  unsigned due_events_ = 0;
  std::unique_ptr<ibv_wc[]> slots_;
  std::unique_ptr<late_copy[]> copies_; ///< of the slots, or nullptr; nothing to copy in free slots
  unsigned capacity_;
  spin_mutex session_; ///< from `start` to `end`, while the program's own code runs
  spin_mutex taking_;  ///< for a few instructions: `taken_`, and the slots from there on
  std::atomic<int> armed_{none};
  bool overflowed_ = false;
  ibv_wc read_{}; ///< the completion that a program reads by ibv_wc_read_*(3)
  alignas(64) std::atomic<std::uint64_t> pushed_{0};
  alignas(64) std::atomic<std::uint64_t> taken_{0};
  std::atomic<unsigned> empty_polls_{0};
  visited_descriptors wires_; ///< without a channel
};

} // namespace soft

#endif
