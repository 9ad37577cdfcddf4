// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/queue_pair_options.hpp>

#include "connecting/handshake.hpp"
#include "core/free_list.hpp"
#include "core/tally.hpp"
#include "link/frame_link.hpp"
#include "link/link_transfer.hpp"
#include "link/offer_key.hpp"
#include "link/receive_source.hpp"
#include "link/silent_peer.hpp"
#include "memory/dropped_blocks.hpp"
#include "queues/queue_pair_impl.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>

namespace asio_rdma::detail {

class background_timer;
class link_session;

/// A link's part of the options of a connection or a stream, which describe the members.
struct link_options {
  std::uint32_t receives = 0;
  std::uint32_t receive_size = 0;
  std::uint32_t max_receive_size = 0; ///< 0: the receives do not grow.
  std::uint32_t sends = 0;
  std::uint32_t send_room = frame_transfer::room; ///< Bytes of a frame that may be copied, at most.
  /// The largest payload of a frame that is worth receiving.
  std::uint64_t most_payload = std::numeric_limits<std::uint64_t>::max();
  std::chrono::milliseconds keep_alive{}, read_timeout{};
  bool own_domain = false; ///< The memory comes from `memory_pool::in_own_domain` of the pool.
  queue_pair_options queue_pair;
};

/// The driver of a `frame_link` on a queue pair: it posts receives and frames and reports their
/// completions. A component of a `link_session`, whose protocol it drives.
///
/// A link that fails or is closed stops only when its last work request has completed. No operation
/// ends while the device may use its memory.
class link_impl final {
public:
  /// Calls no function of `session` before `on_hello`.
  link_impl(link_session& session, asio::execution_context& context, const memory_pool& pool,
            handshake::kind kind, const link_options& options);
  link_impl(const link_impl&) = delete;
  ~link_impl();

  /// A reference that keeps the session alive, and so the link.
  std::shared_ptr<link_impl> reference();

  // --- Opening and ending: the link is not locked --------------------------------------------

  /// Makes the queue pair and posts the receives. A lack of memory is an error, not an exception.
  error_code open(std::shared_ptr<completion_queue_impl> queue);
  /// Makes the queue pair, like the function above, with shared receives.
  error_code open(const std::shared_ptr<shared_receives_impl>& shared);
  /// As in `connection_target`.
  ///@{
  private_data hello() const;
  /// The `max_reads` of the handshake.
  std::uint8_t announced_reads() const noexcept;
  error_code on_hello(std::span<const std::byte> data, bool accepting);
  void on_connected(const asio::ip::tcp::endpoint& peer);
  ///@}

  /// Sends the goodbye after the waiting frames. `op` completes when the peer has said goodbye as
  /// well.
  bool start_close(operation& op);
  /// If `id` is the operation of `start_close`, cancels its wait only and returns true.
  bool cancel_close(std::uint64_t id, asio::cancellation_type_t type);
  /// Starts an operation that completes when the link has failed or was closed, with the reason
  /// that all other operations get.
  bool start_wait(operation& op);
  /// If `id` is an operation of `start_wait`, cancels it and returns true.
  bool cancel_wait(std::uint64_t id);
  /// Ends the connection with an error of the caller's, with which outstanding operations fail.
  void end(const error_code& why);
  /// Ends everything with `operation_aborted` once no work request is outstanding. May be called
  /// more than once.
  void close();
  /// Closes the link, like `close`, while the context shuts down.
  void on_context_shutdown();
  /// Whether the link has neither failed nor been closed.
  bool is_alive() const;

  // --- Options and objects -------------------------------------------------------------------

  /// The options, fitted to the device and to shared receives by `open`.
  const link_options& options() const noexcept { return options_; }
  asio::execution_context& context() const noexcept { return qp_->context(); }
  const memory_pool& pool() const noexcept { return pool_; }
  const device& member_device() const noexcept { return qp_->member_device(); }
  const std::shared_ptr<queue_pair_impl>& queue_pair() const noexcept { return qp_; }
  completion_queue_impl& completion_queue() const noexcept { return *cq_; }
  /// Whether the device sends from one element only. Then all bytes of a frame are copied to the
  /// frame's place.
  bool copies_frames() const noexcept { return qp_->options().max_send_sge == 1; }
  /// The most views of memory that the payload of a frame may have.
  std::uint32_t frame_views() const noexcept {
    const std::uint32_t elements = qp_->options().max_send_sge;
    return copies_frames() ? frame_transfer::max_views
                           : std::min(elements - 1, frame_transfer::max_views);
  }
  /// The number of the next operation that can be cancelled.
  std::uint64_t next_id() noexcept { return qp_->next_id(); }
  /// These are thread-safe.
  ///@{
  link_statistics statistics() const noexcept;
  link_latencies latencies() const noexcept;
  bool measures_latency() const noexcept { return latency_.load() != nullptr; }
  handshake::kind kind() const noexcept { return kind_; }
  /// Unspecified until the link is connected.
  asio::ip::tcp::endpoint peer() const noexcept {
    return knows_endpoint_.load(std::memory_order_acquire) ? peer_ : asio::ip::tcp::endpoint();
  }
  ///@}
  /// From now on the latencies of work requests are measured.
  void measure_latency();

  // --- Visits by the session -----------------------------------------------------------------

  class visit;
  /// Locks the link to read its state. Use a `visit` to change it.
  [[nodiscard]] std::unique_lock<biased_mutex> lock() const { return std::unique_lock(mutex_); }
  /// Whether any thread has locked the link. For assertions only.
  bool is_locked() const noexcept { return mutex_.is_locked(); }

  /// The following functions are called with the link locked.
  ///@{

  /// The error with which new operations fail, if any.
  error_code check() const;
  /// Counts an operation of the user. The visit that ends the operation completes it.
  void operation_starting(const operation& op) {
    cq_->operation_starting(op);
    if (op.continues) [[unlikely]]
      cq_->note_step(op);
  }
  /// Whether the device can use the memory: it belongs to the pool's protection domain, or it is
  /// empty.
  bool is_usable(const registered_buffer& memory) const noexcept;
  /// The state machine, once the peer's values are known.
  frame_link& frames() noexcept { return *frames_; }
  const frame_link& frames() const noexcept { return *frames_; }
  /// The memory of a receive.
  const registered_buffer& received(std::uint32_t slot) noexcept {
    return receives_->receive(slot).memory;
  }
  /// Gives the application bytes of a receive: in the memory of the receive, which it then keeps,
  /// or a copy, so that few bytes do not keep much memory.
  registered_buffer take_received(std::uint32_t slot, std::size_t at, std::size_t bytes) noexcept;

  /// Posts the frame of an action `send`.
  void send(const link_action& a) { send(a.slot, *a.frame); }
  /// Posts a work request. If that fails, the link fails and `done` is not called.
  bool post(link_transfer& t);
  /// Gathers the work requests from now until `post_gathered`, at the latest until the end of the
  /// visit, which must be one that settles (`visit::changed`). They are posted as one chain.
  void gather();
  /// Posts what is gathered now, before work that takes long.
  void post_gathered() {
    if (std::exchange(gathering_, false)) [[unlikely]]
      qp_->release();
  }
  /// Removes a transfer that waits for room in the send queue. Returns true if it will not be
  /// posted; its `done` is called soon.
  bool withdraw(link_transfer& t);
  /// Prepares a READ before it is posted. On iWARP the request carries the key of the READ's one
  /// element, and the peer could write by that key (RFC 5040, section 5.2). Therefore the element
  /// is registered by a key of its own, which ends with the READ. `device_only`: the element is.
  error_code open_sink(link_transfer& read, bool device_only);
  /// A READ of so many bytes has been posted; it has returned.
  ///@{
  void read_posted(std::uint64_t bytes) noexcept { reads_answered_.posted(bytes); }
  void read_returned(std::uint64_t bytes) noexcept { reads_answered_.returned(bytes); }
  ///@}
  /// Ends the key of `open_sink`, if there is one.
  void close_sink(link_transfer& t) noexcept;
  /// Makes a key by which the peer reads the memory of `o`, which lasts until `end_offer`. Errors:
  /// `no_memory`; those of `offer_key::open`.
  error_code open_offer(offered& o, const const_buffer& memory) noexcept;
  /// The key and range of an open offer, for the peer.
  static remote_buffer remote_of(const offered& o) noexcept;
  /// Begins to end the key of an operation that is over, if it has one. If the result is true,
  /// `link_session::on_key_ended` is called later. Then, or at once, `end_offer` must be called.
  bool begin_end(offered& o);
  /// Whether the operation is over, and only the end of its key is not.
  static bool is_ending(const offered& o) noexcept;
  /// Takes the key from an operation whose offer was never sent, unless `end_offer` can end the key
  /// at once. The key ends later by itself, and keeps `memory` until then.
  void drop_offer(offered& o, const registered_buffer& memory);
  /// Ends the key of an operation, if it has one. Result: as `end_key`.
  bool end_offer(offered& o, const registered_buffer& memory, buffer_access& access) noexcept;
  /// Ends a key to `memory` that the peer knows. If that fails the
  /// connection fails too. Then the memory and its access are withheld as long as the key exists,
  /// or until the process ends if there is no memory to withhold them.
  bool end_key(grant_key& key, const registered_buffer& memory, buffer_access& access) noexcept;
  /// Calls the session's `on_idle` when the handlers that are ready have run, and those that they
  /// made ready. Until then the context has work.
  void visit_when_idle();
  /// If on, each visit that runs the link also runs the parts' actions once, as if a part had one.
  /// Otherwise it does so only if a part or the link may have an action.
  void run_parts_always(bool on) noexcept { session_watches_ = on; }
  /// Drops a reference to memory, or an access. The user's memory is released after the link is
  /// unlocked.
  void drop(registered_buffer& memory) noexcept { dropped_.drop(memory); }
  void drop(buffer_access& access) noexcept { dropped_.drop(access); }

  /// Ends the connection with an error of the library's.
  void fail(const error_code& why);
  /// Whether this side must not send before the peer has, on iWARP.
  bool waits_for_peer() const noexcept { return holding_; }
  /// Whether the link is connected, and has neither failed nor been closed.
  bool connected() const noexcept { return state_ == state::connected; }
  /// Whether the link has failed or was closed.
  bool failing() const noexcept { return state_ >= state::failing; }
  /// The link may learn of it later.
  bool has_failed_queue_pair() const {
    return qp_ != nullptr && qp_->state() == queue_pair_state::failed;
  }
  /// Does a step that the link cannot do without. If there is no memory for the step, the link
  /// fails with `no_memory`, which ends all its operations.
  template <class Step>
  void do_or_fail(Step&& step) noexcept {
    try {
      step();
    } catch (const std::bad_alloc&) {
      lack_memory();
    }
  }

  /// The timers of links and of their sessions.
  enum class timer : std::uint8_t {
    alive,   ///< Asks the peer for a sign of life.
    wait,    ///< Logs a long wait for credits.
    reads,   ///< Looks whether the peer answers READs.
    memory,  ///< Retries to allocate memory for receives.
    expiry,  ///< Ends the expired leases of a connection.
    look,    ///< Checks whether the peer of a stream has taken bytes.
    put_off, ///< Reads a message of a connection that was put off.
    goodbye, ///< Ends operations of a connection whose goodbye does not arrive.
    count_
  };
  /// Calls `then` at `when` while the context runs, with the link locked; not if the link is closed
  /// or destroyed before. An earlier time replaces a later one.
  void call_at(timer which, protocol_clock::time_point when, std::function<void()> then);

  /// Count the user's bytes, for the statistics.
  ///@{
  void count_sent(std::uint64_t bytes) noexcept { bytes_sent_.add(bytes); }
  void count_received(std::uint64_t bytes) noexcept { bytes_received_.add(bytes); }
  ///@}
  ///@}

private:
  // Parts of the link, in files of their own. The public functions are for the session.
  friend own_source;    // counts the receives that it posts, and retries to allocate their memory
  friend shared_source; // passes received frames on, and counts the operation that ends it
  friend link_receive;  // its completion calls `on_receive`
  friend link_transfer; // its completion calls `on_transfer`
  friend offer_key;     // its requests call `offer_ended`
  friend idle_visit;    // its completion calls `on_idle`

  /// In this order. `failing`: work requests are still outstanding.
  enum class state : std::uint8_t { open, connected, failing, stopped };

  error_code open_with(std::shared_ptr<completion_queue_impl> queue);
  error_code make_work_requests();
  error_code begin();

  // Driving.
  void run(operation_list& done) noexcept;
  void advance(operation_list& done) noexcept;
  /// These unlock the mutex.
  ///@{
  void settle(operation_list& done) noexcept;
  [[gnu::noinline]] void settle_rest(operation_list& done, bool visits) noexcept;
  ///@}
  bool has_news() const noexcept {
    return frames_->has_news() || frames_->may_act() || session_watches_;
  }
  void drive(operation_list& done);
  void note_credit_waits() noexcept;
  void log_wait(protocol_clock::duration so_far, bool ended) const noexcept;
  void log_end() const noexcept;
  void measure(link_transfer& t) noexcept;
  void send(std::uint32_t slot, const outgoing_frame& frame);
  void stop(operation_list& done);
  void lack_memory() noexcept;
  void end_queue_pair();
  void drop_memory();

  // For the parts.
  bool knows_peer() const noexcept { return frames_.has_value(); }
  /// The size of the receives to be posted now.
  std::uint32_t receive_size() const noexcept {
    return frames_ ? frames_->receive_size() : options_.receive_size;
  }
  void limit_receives(std::uint32_t most) noexcept;
  void posting();
  void not_posted() noexcept { --posted_; }
  void end_with(link_transfer& t);
  void saw_sign() noexcept { probe_.saw_sign(); }
  void on_receive(link_receive& r, disposal how);
  void on_transfer(link_transfer& t, disposal how);
  void on_idle(disposal how);
  void offer_ended(offer_key& key, operation_list& done);
  bool close(offer_key& key, const registered_buffer& memory, buffer_access& access) noexcept;
  bool take_frame(const frame_receive& r);
  template <class Function>
  void returned(disposal how, Function&& f);
  void look_for_memory();

  link_session& session_;
  completion_service& service_;
  error_code without_domain_; // why there is no domain of its own
  memory_pool pool_;
  handshake::kind kind_;
  link_options options_;
  std::shared_ptr<queue_pair_impl> qp_;
  std::shared_ptr<completion_queue_impl> cq_;

  mutable biased_mutex mutex_; // its owner is the thread that runs the completion queue
  dropped_blocks dropped_;     // released after the mutex is unlocked
  std::optional<frame_link> frames_;
  std::unique_ptr<receive_source> receives_;
  std::deque<frame_transfer> sends_;
  free_list<offer_key> offer_keys_;
  registered_buffer send_memory_;
  std::size_t posted_ = 0;               // outstanding work requests
  std::shared_ptr<context_member> self_; // while there are outstanding work requests
  operation* closing_ = nullptr;
  operation_list waiters_; // for the end of the link
  idle_visit idle_visit_{*this};
  using timers = std::array<std::unique_ptr<background_timer>, std::size_t(timer::count_)>;
  timers timers_; // null until first used; all null once the link is closed
  keep_alive_probe probe_{*this};
  read_deadline reads_answered_{*this};
  tally bytes_sent_, bytes_received_, frames_sent_, frames_received_, credit_waits_, registrations_;
  tally requests_started_, requests_ended_;
  std::atomic<std::uint32_t> credits_{0};
  struct latencies_measured {
    latency_tally sends, remote;
  };
  std::unique_ptr<latencies_measured> own_latency_;
  std::atomic<latencies_measured*> latency_{nullptr}; // null: not measured
  asio::ip::tcp::endpoint peer_;
  std::atomic<bool> knows_endpoint_{false};               // `peer_` does not change any more
  std::optional<protocol_clock::time_point> waits_since_; // for credits, if waits are logged
  error_code reason_;
  enum class idle_state : std::uint8_t { none, due, postponed } idle_ = idle_state::none;
  bool reads_ = false; // the peer says that it answers READs
  state state_ = state::open;
  bool holding_ = false;             // the queue pair may not send before the peer
  bool gathering_ = false;           // work requests, until `post_gathered`
  bool session_watches_ = false;     // see `run_parts_always`
  bool kept_ = false;                // the device keeps memory of posted work requests
  bool failure_reported_ = false;    // to the queue pair
  std::atomic<bool> removed_{false}; // the session is no member of the service
};

/// A visit to a link, with its mutex locked. If something has changed, the destructor unlocks, then
/// completes the operations that are done and does all else that must not be done under the lock.
class link_impl::visit {
public:
  explicit visit(link_impl& link) noexcept : link_(link) { link.mutex_.lock(); }
  /// For a work request that has returned, perhaps to the thread that runs the completion queue.
  struct returning {};
  visit(link_impl& link, returning) noexcept : link_(link) { link.cq_->lock(link.mutex_); }
  visit(const visit&) = delete;
  ~visit() {
    assert(changed_ || !link_.gathering_);
    changed_ ? link_.settle(done) : link_.mutex_.unlock();
  }

  /// Operations that have ended.
  operation_list done;

  /// There is something to settle, though nothing to carry out.
  void changed() noexcept { changed_ = true; }
  /// Carries out all actions. If a step lacks memory, the link fails.
  void run() noexcept {
    changed();
    link_.run(done);
  }
  /// Carries out all actions, like `run`, and those of the parts even if the link fails, because
  /// arrived messages and bytes can still be received.
  void advance() noexcept {
    changed();
    link_.advance(done);
  }

private:
  link_impl& link_;
  bool changed_ = false;
};

// Calls `f`, with the link locked, to process a returned work request.
template <class Function>
void link_impl::returned(disposal how, Function&& f) {
  if (how != disposal::destroy) {
    visit v(*this, visit::returning());
    --posted_;
    do_or_fail([&] { f(v.done); });
    v.run();
    return;
  }
  operation_list done;
  std::unique_lock l(mutex_);
  fail(asio::error::operation_aborted);
  --posted_;
  do_or_fail([&] { f(done); });
  run(done);
  const dropped_blocks dropped(std::move(dropped_));
  const auto last = posted_ == 0 ? std::move(self_) : nullptr;
  const auto cq = cq_;
  l.unlock();
  cq->complete(done); // destroys them, as the context has ended
}

} // namespace asio_rdma::detail
