// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/queue_pair_options.hpp>

#include "connecting/connection_target.hpp"
#include "connecting/handshake.hpp"
#include "core/tally.hpp"
#include "link/frame_link.hpp"
#include "link/receive_source.hpp"
#include "memory/dropped_blocks.hpp"
#include "queues/queue_pair_impl.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// A link's part of the options of a connection or a stream, which describe the members.
struct link_options {
  std::uint32_t receives = 0;
  std::uint32_t receive_size = 0;
  std::uint32_t sends = 0;
  /// The largest payload of a frame that is worth receiving.
  std::uint64_t most_payload = std::numeric_limits<std::uint64_t>::max();
  std::chrono::milliseconds keep_alive{};
  queue_pair_options queue_pair;
};

class background_timer;
class link_impl;
class link_pull;

/// A work request of the library's own. `done` is called exactly once, with the link locked, and
/// adds the operations that it completes to the list.
class link_transfer : public send_operation {
public:
  using done_function = void (*)(link_impl&, link_transfer&, operation_list&);
  link_transfer(link_impl& link, done_function done) noexcept;

  std::array<ibv_sge, 4> elements{};
  bool withdrawn = false; ///< Before it was posted, so its failure is not the link's.

protected:
  link_impl& link() const noexcept { return link_; }

private:
  friend link_impl;
  static void run(operation* base, disposal how);

  link_impl& link_;
  done_function done_;
  memory_region sink_; // see `link_impl::open_sink`
};

/// Asks a silent peer for a sign of life, by an RDMA WRITE of zero bytes. Functions are called with
/// the link locked.
class keep_alive_probe final : public link_transfer {
public:
  explicit keep_alive_probe(link_impl& link) noexcept;
  /// Probes a peer that has been silent for the interval, or for half of it. 0: never.
  void start(std::chrono::milliseconds interval);
  /// A work request has completed.
  void saw_sign() noexcept { ++signs_; }

private:
  void wait();
  void check();

  std::chrono::microseconds pause_{};
  bool asking_ = false;
  std::uint64_t signs_ = 0, signs_before_ = 0; // work requests that have completed, now and at the
                                               // last check
};

/// The SEND of a frame. The header has memory of its own, with room for small payloads.
class frame_transfer final : public link_transfer {
public:
  static constexpr std::size_t room = 256;
  static constexpr std::size_t payload_room = room - frame_header::size;

  frame_transfer(link_impl& link, std::uint32_t slot, std::byte* place) noexcept;

  /// Copies payload behind the header, at most `payload_room` bytes in total.
  void copy(const void* data, std::size_t bytes) noexcept;
  /// Adds payload that the device reads in place: at most three elements, after the copied bytes.
  void add(const ibv_sge& element) noexcept;

private:
  friend link_impl;
  static void on_done(link_impl& link, link_transfer& t, operation_list& done);

  std::uint32_t slot_;
  std::byte* place_;
};

/// The bytes that arrived in a receive. Empty if the completion carries immediate data or an
/// invalidated key, because that is no frame. After an RDMA WRITE with immediate data the memory
/// has its old contents.
inline std::span<const std::byte> received_bytes(const frame_receive& r) noexcept {
  if ((r.flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0)
    return {};
  return {static_cast<const std::byte*>(r.memory.data()), r.bytes};
}

/// The driver of a `frame_link` on a queue pair: it posts receives and frames and reports their
/// completions. The base of connections and streams, which add their own parts.
///
/// A link that fails or is closed stops only when its last work request has completed. No operation
/// ends while the device may use its memory.
class link_impl : public context_member, public connection_target {
public:
  /// Makes the queue pair and posts the receives. A lack of memory is an error, not an exception.
  error_code open(std::shared_ptr<completion_queue_impl> queue);
  /// The same with shared receives.
  error_code open(const std::shared_ptr<shared_receives_impl>& shared);

  const std::shared_ptr<queue_pair_impl>& target_queue_pair() const noexcept override {
    return qp_;
  }
  private_data hello() const override;
  error_code on_hello(std::span<const std::byte> data, bool accepting) override;
  void on_connected(const connection_info& info) override;

  void on_context_shutdown() override;
  void on_device_event(const ibv_async_event&) noexcept override {}
  const device& member_device() const noexcept override { return qp_->member_device(); }

  /// Ends everything with `operation_aborted` once no work request is outstanding. May be called
  /// more than once.
  void close();
  /// Ends the connection with an error of the caller's, with which outstanding operations fail.
  void end(const error_code& why);
  /// Whether the link has neither failed nor been closed.
  bool is_alive() const;
  /// Sends the goodbye after the waiting frames. `op` completes when the peer has said goodbye as
  /// well.
  bool start_close(operation& op);
  /// If `id` is the operation of `start_close`, cancels its wait only and returns true.
  bool cancel_close(std::uint64_t id, asio::cancellation_type_t type);

  std::uint64_t next_id() noexcept { return qp_->next_id(); }
  asio::execution_context& context() const noexcept { return qp_->context(); }
  const std::shared_ptr<queue_pair_impl>& queue_pair() const noexcept { return qp_; }
  const memory_pool& pool() const noexcept { return pool_; }
  const link_options& options() const noexcept { return options_; }
  /// Thread-safe.
  link_statistics statistics() const noexcept;

protected:
  link_impl(asio::execution_context& context, const memory_pool& pool, handshake::kind kind,
            const link_options& options);
  ~link_impl() override;

  class turn;

  /// The following functions are called with the mutex locked.
  ///@{

  /// Makes the parts, once the peer's values are known.
  virtual void make_parts(frame_link& link, const handshake& peer) = 0;
  /// Carries out the actions of the parts. Returns true if there were any.
  virtual bool run_parts(operation_list& done) = 0;
  /// Called after the completion of a work request has been processed.
  virtual void after_event() {}
  /// Adds a payload that lies in the buffers of a part's operation.
  virtual void add_payload(const outgoing_frame& frame, frame_transfer& to) = 0;
  /// The error with which new operations fail, if any.
  error_code check() const;
  bool post(link_transfer& t);
  /// Prepares a READ before it is posted. On iWARP the request carries the key of the READ's one
  /// element, and the peer could write by that key (RFC 5040, section 5.2). Therefore the element
  /// is registered by a key of its own, which ends with the READ.
  error_code open_sink(link_transfer& read);
  /// Ends the key of `open_sink`, if there is one.
  void close_sink(link_transfer& t) noexcept;
  /// Removes a transfer that waits for room in the send queue. Returns true if it will not be
  /// posted; its `done` is called soon.
  bool withdraw(link_transfer& t);
  /// The memory of a receive. A received message may take it.
  registered_buffer& received(std::uint32_t slot) noexcept { return receives_->memory(slot); }
  frame_link& frames() noexcept { return *link_; }
  const frame_link& frames() const noexcept { return *link_; }
  /// Ends the connection with an error of the library's.
  void fail(const error_code& why);
  bool failing() const noexcept { return state_ >= state::failing; }
  /// Ends a key (`memory_region` or `grant_key`) to `memory` that the peer knows. If that fails the
  /// connection fails too. Then the memory and its access are withheld as long as the key exists,
  /// or until the process ends if there is no memory to withhold them.
  template <class Key>
  bool end_key(Key& key, const registered_buffer& memory, buffer_access& access) noexcept;
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
  /// The timers of links and of their derived classes.
  enum class timer : std::uint8_t {
    alive,  ///< Asks the peer for a sign of life.
    memory, ///< Retries to allocate memory for receives.
    expiry, ///< Ends the expired leases of a connection.
    look,   ///< Checks whether the peer of a stream has taken bytes.
    count_
  };
  /// Calls `then` at `when` while the context runs, with the mutex locked; not if the link is
  /// closed or destroyed before. An earlier time replaces a later one.
  void call_at(timer which, protocol_clock::time_point when, void (*then)(link_impl&));
  /// Whether the device can use the memory: it belongs to the pool's protection domain, or it is
  /// empty.
  bool is_usable(const registered_buffer& memory) const noexcept;
  ///@}

  /// Counts an operation of the user, which `settle` completes.
  void operation_starting() { cq_->operation_starting(); }
  completion_queue_impl& completion_queue() const noexcept { return *cq_; }
  mutable mutex mutex_;
  dropped_blocks dropped_;            // released after the mutex is unlocked
  tally bytes_sent_, bytes_received_; // counted by the derived classes

private:
  // Parts of the link, in files of their own.
  friend keep_alive_probe;
  friend own_source;
  friend shared_source;
  friend link_receive;
  friend link_transfer;
  friend frame_transfer;
  friend link_pull;

  /// In this order. `failing`: work requests are still outstanding.
  enum class state : std::uint8_t { open, connected, failing, stopped };

  error_code open_with(std::shared_ptr<completion_queue_impl> queue);
  error_code make_work_requests();
  void run(operation_list& done) noexcept;
  void advance(operation_list& done) noexcept;
  void end_event(operation_list& done) noexcept;
  void settle(std::unique_lock<mutex>& l, operation_list& done) noexcept;
  void drive(operation_list& done);
  void stop(operation_list& done);
  void lack_memory() noexcept;
  error_code begin();
  void on_receive(link_receive& r, disposal how);
  void on_transfer(link_transfer& t, disposal how);
  bool take_frame(const frame_receive& r);
  void send(std::uint32_t slot, const outgoing_frame& frame);
  void posted();
  template <class Function>
  void returned(disposal how, Function&& f);
  void end_queue_pair();
  void drop_memory();
  void look_for_memory();

  completion_service& service_;
  memory_pool pool_;
  handshake::kind kind_;
  link_options options_;
  std::shared_ptr<queue_pair_impl> qp_;
  std::shared_ptr<completion_queue_impl> cq_;
  std::optional<frame_link> link_;
  std::unique_ptr<receive_source> receives_;
  std::deque<frame_transfer> sends_;
  registered_buffer send_memory_;
  std::size_t posted_ = 0;               // outstanding work requests
  std::shared_ptr<context_member> self_; // while there are outstanding work requests
  operation* closing_ = nullptr;
  using timers = std::array<std::unique_ptr<background_timer>, std::size_t(timer::count_)>;
  timers timers_; // null until first used; all null once the link is closed
  keep_alive_probe probe_{*this};
  tally frames_sent_, frames_received_, credit_waits_;
  error_code reason_;
  bool reads_ = false; // the peer says that it answers READs
  state state_ = state::open;
  bool holding_ = false;             // the queue pair may not send before the peer
  bool kept_ = false;                // the device keeps memory of posted work requests
  bool told_ = false;                // the queue pair knows that the link fails
  std::atomic<bool> removed_{false}; // the link is no member of the service
};

/// A visit to a link, with its mutex locked. If something has changed, the destructor unlocks, then
/// completes the operations that are done and does all else that must not be done under the lock.
class link_impl::turn {
public:
  explicit turn(link_impl& link) : link_(link), lock_(link.mutex_) {}
  turn(const turn&) = delete;
  ~turn() {
    if (changed_)
      link_.settle(lock_, done);
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
  /// The same, and the actions of the parts even if the link fails, because arrived messages and
  /// bytes can still be received.
  void advance() noexcept {
    changed();
    link_.advance(done);
  }
  /// As `run`, after the completion of a work request or of a timer.
  void run_event() noexcept {
    run();
    link_.end_event(done);
  }

private:
  link_impl& link_;
  std::unique_lock<mutex> lock_;
  bool changed_ = false;
};

// Calls `f`, with the link locked, to process a returned work request.
template <class Function>
void link_impl::returned(disposal how, Function&& f) {
  if (how != disposal::destroy) {
    turn t(*this);
    --posted_;
    probe_.saw_sign();
    do_or_fail([&] { f(t.done); });
    t.run_event();
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
