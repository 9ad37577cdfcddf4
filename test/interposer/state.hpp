// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "faults.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace faults {

// A descriptor that is readable if the device's descriptor is, or if this side's queue is not
// empty.
class merged_descriptor {
public:
  explicit merged_descriptor(int real);
  ~merged_descriptor();
  merged_descriptor(const merged_descriptor&) = delete;
  merged_descriptor& operator=(const merged_descriptor&) = delete;

  int fd() const { return epoll_; }
  int real() const { return real_; }
  void signal();
  void clear();
  // Call it if there was nothing to read. False if the caller asked for a non-blocking descriptor
  // (errno is EAGAIN); otherwise it waits and returns true when there is something to read.
  bool wait() const;

private:
  int real_, epoll_ = -1, event_ = -1;
};

struct channel_state {
  explicit channel_state(ibv_comp_channel* r) : real(r), merged(r->fd) {}
  ibv_comp_channel* real;
  merged_descriptor merged;
  ibv_comp_channel facade{};
  std::deque<ibv_cq*> injected;
};

struct cq_state {
  std::deque<ibv_wc> ready, held;
  bool armed = false; // for the caller
  int solicited_only = 0;
  unsigned plan_hold = 0; // empty polls left
  std::uint64_t real_unacked = 0, injected_unacked = 0, forgiven = 0;
};

struct qp_state {
  ibv_qp* qp;
  // After a failed completion, later work requests of its queue are flushed.
  bool send_failed = false, receive_failed = false;
  bool flushing = false, flushed = false;
};

struct call_rule {
  call which;
  int error;
  std::uint64_t skip, times;
  unsigned index;
  bool at_index;
  std::uint32_t qp_num;
  int qp_state; // -1: any
};

struct completion_rule {
  completion_fault fault;
  std::uint64_t skip, times;
};

enum class chance : std::uint8_t {
  send,
  receive,
  index,
  completion,
  status,
  hold,
  hold_length,
  hold_end,
  spurious,
  lose,
  registration,
  creation,
  modify,
  count_
};

constexpr unsigned unnamed = static_cast<unsigned>(-1);

struct refusal {
  int error = 0;
  unsigned index = 0; // in the chain, or unnamed
};

// The state of one opened context, from ibv_open_device to ibv_close_device. The mutex must be
// locked for members whose names end in _locked.
struct context_state : std::enable_shared_from_this<context_state> {
  explicit context_state(ibv_context* c);
  ~context_state();

  // The calls of the data path.
  refusal check(call which, std::uint32_t qp_num = 0, int qp_state = -1, unsigned chain = 1);
  int poll(ibv_cq* cq, int n, ibv_wc* wc);
  int arm(ibv_cq* cq, int solicited_only);

  refusal check_locked(call which, std::uint32_t qp_num, int qp_state, unsigned chain);
  bool rewrite_locked(ibv_wc& wc);
  bool holds_locked(ibv_cq* cq, const cq_state& s, std::uint32_t qp_num) const;
  // Takes completions from the device, rewrites and sorts them. Returns the number of visible ones,
  // or the device's error.
  int take_locked(ibv_cq* cq, cq_state& s, int n, ibv_wc* wc);
  void pull_locked(ibv_cq* cq, cq_state& s);
  std::size_t release_locked(ibv_cq* cq, cq_state& s, std::size_t n);
  std::size_t release_all_locked();
  // For a queue pair that flushes late: it has reached the error state; the caller has read the
  // event.
  void flush_locked(ibv_qp* qp);
  void flushed_locked(std::uint32_t qp_num);
  void drop_completions_locked(std::uint32_t qp_num);
  void inject_channel_event_locked(ibv_cq* cq);
  void inject_async_locked(const ibv_async_event& e);
  std::uint64_t draw_locked(chance kind);
  bool happens_locked(chance kind, double probability);
  void swap_table();
  void restore_table_locked(); // unless undelivered completions remain

  mutable std::mutex mutex;
  std::mutex creation_mutex;
  ibv_context* context; // null after closing
  bool attached = false;
  bool swapped = false;
  ibv_context_ops original{};

  std::unordered_map<ibv_cq*, cq_state> cqs;
  std::unordered_map<std::uint32_t, qp_state> qps;
  std::map<ibv_comp_channel*, std::unique_ptr<channel_state>> channels;

  std::condition_variable acknowledged;
  std::chrono::milliseconds patience{5000};
  std::unique_ptr<merged_descriptor> async;
  std::deque<ibv_async_event> async_injected;
  std::vector<ibv_async_event> async_injected_unacked, async_real_unacked, async_forgiven;

  std::vector<call_rule> rules;
  std::vector<completion_rule> completion_rules;
  std::vector<completion_filter> holds;
  std::uint64_t lose = 0;
  bool dead = false;
  bool late_flush = false;
  std::optional<plan> random;
  std::array<std::uint64_t, static_cast<std::size_t>(chance::count_)> drawn{};
  counters counts;
};

bool same_element(const ibv_async_event& a, const ibv_async_event& b);

// The state of a context that was opened here, or a new state for another context.
std::shared_ptr<context_state> state_of(ibv_context* context);
void forget(ibv_context* context);
// The first state of which that is true, or null.
std::shared_ptr<context_state> find_state(const std::function<bool(context_state&)>& is_it);

// Replaces create_*_ex in a context's extended table, while the context is open.
void swap_extended(ibv_context* context);
void forget_extended(ibv_context* context);

// The function of libibverbs that a function of the same name in this library hides.
void* next_symbol(const char* symbol);

void link_control_functions(); // their object files must not be left out of a static link
void link_event_functions();

// Queues and queue pairs are created with the descriptor for their asynchronous events, which must
// be one that the kernel knows, and events are read from it. Another thread that reads
// context->async_fd meanwhile sees that descriptor; ThreadSanitizer is not informed, as no other
// library writes there. To be made without the state's mutex.
class real_async_fd {
public:
  explicit real_async_fd(context_state& state) : lock_(state.creation_mutex), state_(state) {
    if (state_.async)
      use(state_.async->real());
  }
  ~real_async_fd() {
    if (state_.async)
      use(state_.async->fd());
  }
  real_async_fd(const real_async_fd&) = delete;
  real_async_fd& operator=(const real_async_fd&) = delete;

private:
  [[gnu::no_sanitize_thread]] void use(int fd) { state_.context->async_fd = fd; }

  std::lock_guard<std::mutex> lock_;
  context_state& state_;
};

} // namespace faults

// libibverbs hides some functions behind macros of the same name. A file that needs these functions
// undefines the macros.
#define FAULTS_REAL(function)                                                                      \
  [] {                                                                                             \
    static const auto next =                                                                       \
        reinterpret_cast<decltype(&::function)>(::faults::next_symbol(#function));                 \
    return next;                                                                                   \
  }()
#define FAULTS_EXPORT extern "C" __attribute__((visibility("default")))
