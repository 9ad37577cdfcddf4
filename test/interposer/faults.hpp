// SPDX-License-Identifier: BSL-1.0
//
// Fault injection between a program and a real RDMA device.
//
// The data path (post, poll, arm, memory windows) goes through the function table of an opened
// ibv_context, which an injector replaces. Control functions are exported by libibverbs, so this
// library defines functions of the same names. They come first in the search order of an executable
// that links this library, also for calls by librdmacm, and forward to libibverbs. libibverbs must
// be a shared library.
//
// Completion channels and asynchronous event descriptors of every context opened in the process are
// descriptors of this library. They become readable for the device's events and for injected ones.
//
// Not covered: extended polling (ibv_start_poll) and extended posting (ibv_wr_start).
//
// All functions are safe from any thread. Construct and destroy an injector while no other thread
// posts to or polls objects of its context: the table itself is plain memory.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <memory>
#include <string>

namespace faults {

struct context_state;

inline constexpr std::uint64_t forever = std::numeric_limits<std::uint64_t>::max();

enum class call : std::uint8_t {
  post_send,
  post_recv,
  post_srq_recv,
  poll_cq,
  req_notify_cq,
  alloc_pd,
  dealloc_pd,
  reg_mr, // every registration function
  dereg_mr,
  create_comp_channel,
  destroy_comp_channel,
  create_cq, // ibv_create_cq and ibv_create_cq_ex; the same for the two below
  resize_cq,
  destroy_cq,
  create_srq,
  modify_srq,
  destroy_srq,
  create_qp,
  modify_qp,
  destroy_qp,
  query_qp,
  alloc_mw,
  bind_mw, // ibv_bind_mw; a window bound by a work request is a post_send
  dealloc_mw,
  create_ah,
  count_
};
const char* name(call which);

// The calls to which a fault applies, counted since the fault was added.
struct occurrence {
  std::uint64_t first = 1;
  std::uint64_t times = 1;
};

struct completion_fault {
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
  std::uint32_t vendor_err = 0;
  std::uint32_t qp_num = 0;    // 0: of any queue pair
  std::uint64_t wr_id = 0;     // 0: any
  bool qp_to_error = true;     // a device moves the queue pair to the error state
  bool only_successful = true; // pass over completions that failed by themselves
  bool repeated = false;       // the next poll finds it once more, flushed, as a READ of siw
  occurrence when = {};
};

// The completions to hold back; null and 0 mean any.
struct completion_filter {
  ibv_cq* cq = nullptr;
  std::uint32_t qp_num = 0;
  // Also those that are still in the device when `qp_num` is destroyed. They are dropped, as held
  // ones are.
  bool at_destruction = false;
};

// Random faults. A decision depends on the seed, the kind of fault and the number of earlier
// decisions of that kind, not on the interleaving of calls of different kinds. Values are
// probabilities.
struct plan {
  std::uint64_t seed = 0;
  double refuse_send = 0;     // ENOMEM, at a random position of the chain
  double refuse_receive = 0;  // ENOMEM, queue pairs and shared receive queues
  double fail_completion = 0; // the queue pair enters the error state
  // Held until one of three events. The completion queue has been polled empty a few times. Or it
  // is armed: then the poll after arming finds the completion. Or it is polled empty after arming:
  // then there is a channel event.
  double hold_completion = 0;
  double spurious_event = 0; // per arming: an event without a completion
  double lose_event = 0;
  double fail_registration = 0; // ENOMEM
  double fail_creation = 0;  // ENOMEM: protection domains, channels, queues, queue pairs, windows
  double fail_modify_qp = 0; // EINVAL
};
std::ostream& operator<<(std::ostream& out, const plan& p);

// The value of ASIO_RDMA_FAULT_SEED, or a random one.
std::uint64_t seed_from_environment();

struct counters {
  std::array<std::uint64_t, static_cast<std::size_t>(call::count_)> calls{};
  std::array<std::uint64_t, static_cast<std::size_t>(call::count_)> refused{};
  std::uint64_t send_requests = 0; // work requests in all chains, refused ones included
  std::uint64_t receive_requests = 0;
  unsigned last_send_flags = 0;    // send_flags of the last work request of the last chain
  std::uint32_t last_send_key = 0; // of its first buffer
  ibv_mw_bind_info last_bind{};    // of the last work request that binds a window
  std::uint64_t completions = 0;   // returned to the caller
  std::uint64_t failed_completions = 0;
  std::uint64_t held_completions = 0;
  std::uint64_t dropped_completions = 0; // held ones whose queue pair was destroyed
  std::uint64_t empty_polls = 0;
  std::uint64_t channel_events = 0; // returned to the caller
  std::uint64_t channel_events_acked = 0;
  std::uint64_t channel_ack_calls = 0;
  std::uint64_t channel_events_lost = 0;
  std::uint64_t channel_events_injected = 0;
  std::uint64_t async_events = 0; // returned to the caller
  std::uint64_t async_events_acked = 0;
  // Events whose object was destroyed before they were acknowledged. libibverbs would wait for
  // ever; this library gives up after a while, so that a test can fail instead.
  std::uint64_t unacknowledged_at_destroy = 0;

  std::uint64_t operator[](call which) const { return calls[static_cast<std::size_t>(which)]; }
  std::uint64_t refused_of(call which) const { return refused[static_cast<std::size_t>(which)]; }
};

// The bytes that the calling thread has registered, of all contexts.
std::uint64_t bytes_registered_here();

class injector {
public:
  // Attaches to an opened context. Throws std::logic_error if another injector is attached to it.
  explicit injector(ibv_context* context);
  // Removes all faults, releases held completions and restores the table: at once, or when the last
  // held completion has been polled. The context may already have been closed.
  ~injector();
  injector(const injector&) = delete;
  injector& operator=(const injector&) = delete;

  // Fails whole calls with an errno value. qp_num limits posts, modify_qp, query_qp and bind_mw.
  void fail(call which, int error, occurrence when = {}, std::uint32_t qp_num = 0);
  void fail_modify_qp(ibv_qp_state to, int error, occurrence when = {});
  // Refuses the work request at an index of the chain: those before it are posted, and bad_wr
  // points to it. A call with a shorter chain is not counted.
  void refuse_post(call which, int error = ENOMEM, occurrence when = {}, unsigned index = 0,
                   std::uint32_t qp_num = 0);

  // Fails a post without naming a work request: bad_wr is null. Sends are all posted, as by rxe
  // when its doorbell fails. Receives are not posted, as by rxe before the state INIT.
  void fail_post_unnamed(call which, int error, occurrence when = {}, std::uint32_t qp_num = 0);

  // Rewrites the status of a completion. The fields that verbs then leaves undefined are
  // overwritten. With qp_to_error, later work requests of the same send or receive queue are
  // flushed.
  void fail_completion(const completion_fault& fault);

  // From now on these completions are hidden, as if the device had not finished them: they are not
  // polled, and raise no channel event. Several filters add up.
  void hold_completions(completion_filter filter = {});
  // Makes the oldest held completions visible, with a channel event if the queue is armed. Later
  // completions are still held.
  std::size_t release_completions(std::size_t n);
  // Releases all held completions and ends holding.
  std::size_t release_completions();
  // The number of completions that are held now. Polls the device first.
  std::size_t held();

  // As mlx5: if a queue pair with a shared receive queue reaches the error state, it completes the
  // receives that it has taken later. From then on its completions are held, and those that were
  // held by its number stay held, until IBV_EVENT_QP_LAST_WQE_REACHED is read. That event is raised
  // at once. Destroying the queue pair drops its completions that were not polled.
  void flush_late();

  // The next channel events are read from the device and discarded.
  void lose_channel_events(unsigned n = 1);
  // Raises an event for a queue, which may have no completion.
  void raise_channel_event(ibv_cq* cq);

  // IBV_EVENT_QP_FATAL also moves the queue pair to the error state, as a device does.
  void raise_qp_event(ibv_qp* qp, ibv_event_type type = IBV_EVENT_QP_FATAL);
  void raise_cq_error(ibv_cq* cq);
  void raise_srq_event(ibv_srq* srq, ibv_event_type type = IBV_EVENT_SRQ_ERR);
  void raise_port_event(ibv_event_type type = IBV_EVENT_PORT_ERR, int port = 1);
  // After this event every call that posts, arms, creates or modifies fails with EIO.
  void raise_device_fatal();

  // The time for which destroying waits for the acknowledgement of events: 5 s by default.
  void set_patience(std::chrono::milliseconds patience);

  void run(const plan& p);
  void clear(); // no further faults; held completions are released

  counters counts() const;
  ibv_context* context() const { return context_; }

private:
  ibv_context* context_;
  std::shared_ptr<context_state> state_;
};

} // namespace faults
