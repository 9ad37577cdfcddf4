// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/detail/connection_target.hpp>
#include <asio_rdma/detail/counter.hpp>
#include <asio_rdma/detail/dropped_blocks.hpp>
#include <asio_rdma/detail/frame_link.hpp>
#include <asio_rdma/detail/frame_receive.hpp>
#include <asio_rdma/detail/handshake.hpp>
#include <asio_rdma/detail/queue_pair_impl.hpp>
#include <asio_rdma/detail/shared_receives_impl.hpp>
#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// Whether a cancellation may end an operation that has begun, and so may have had an effect.
/// `total` alone may not (Boost.Asio, `cancellation_type`).
inline bool may_leave_effects(asio::cancellation_type_t type) noexcept {
  return (type & (asio::cancellation_type::partial | asio::cancellation_type::terminal)) !=
         asio::cancellation_type::none;
}

class background_timer;
class link_impl;
class link_pull;

/// A link's own receive.
class link_receive final : public frame_receive {
public:
  link_receive(link_impl& link, std::uint32_t number) noexcept
      : frame_receive(&link_receive::run, number), link_(link) {}

private:
  static void run(operation* base, disposal how);

  link_impl& link_;
};

/// The last operation of a queue pair whose receives are shared: tells the link of its end, as its
/// own receives would.
class link_end final : public operation {
public:
  explicit link_end(link_impl& link) noexcept;

private:
  static void run(operation* base, disposal how);

  link_impl& link_;
};

/// A work request of the library's own. `done` is called with the link locked, and once in any
/// case; what completes by it goes to the list.
class link_transfer : public send_operation {
public:
  using done_function = void (*)(link_impl&, link_transfer&, operation_list&);
  link_transfer(link_impl& link, done_function done) noexcept;

  std::array<ibv_sge, 4> elements{};
  bool withdrawn = false; ///< Before it was posted: its failure is not the link's.

private:
  friend link_impl;
  static void run(operation* base, disposal how);

  link_impl& link_;
  done_function done_;
  memory_region sink_; // see link_impl::open_sink
};

/// The SEND of a frame: the header lies in memory of its own, with room for small payloads.
class frame_transfer final : public link_transfer {
public:
  static constexpr std::size_t room = 256;
  static constexpr std::size_t payload_room = room - frame_header::size;

  frame_transfer(link_impl& link, std::uint32_t slot, std::byte* place) noexcept;

  /// Adds payload that is copied behind the header, at most `payload_room` in all.
  void copy(const void* data, std::size_t bytes) noexcept;
  /// Adds payload that the device reads where it is; at most three elements, after what is copied.
  void add(const ibv_sge& element) noexcept;

private:
  friend link_impl;
  static void on_done(link_impl& link, link_transfer& t, operation_list& done);

  std::uint32_t slot_;
  std::byte* place_;
};

/// What has come into the memory of a receive. Nothing, and that is no frame, if the receive was
/// used up by an RDMA WRITE with immediate data, which left there what an earlier one had brought.
inline std::span<const std::byte> received_bytes(const frame_receive& r) noexcept {
  if ((r.flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0)
    return {};
  return {static_cast<const std::byte*>(r.memory.data()), r.bytes};
}

/// What drives a `frame_link` on a queue pair: posts its receives and its frames, and brings it
/// what came of them. A connection and a stream are links with parts of their own.
///
/// The device lets go of everything before anything ends: a link that fails or is closed waits for
/// its last work request, and stops then.
class link_impl : public context_member, public connection_target {
public:
  /// Makes the queue pair and posts the receives. A lack of memory is an error, not an exception.
  error_code open(std::shared_ptr<completion_queue_impl> queue);
  /// The same, with receives that are shared with others.
  error_code open(const std::shared_ptr<shared_receives_impl>& shared);

  const std::shared_ptr<queue_pair_impl>& target_queue_pair() const noexcept override {
    return qp_;
  }
  private_data hello() const override;
  error_code on_hello(std::span<const std::byte> data, bool accepting) override;
  void on_connected(const connection_info& info) override;

  void on_context_shutdown() override;
  void on_device_event(const ibv_async_event&) override {}
  const device& member_device() const noexcept override { return qp_->member_device(); }

  /// Also more than once: ends everything with `operation_aborted` once the device has let go.
  void close();
  /// Ends the connection for a reason of the caller's: what is under way fails with it.
  void end(const error_code& why);
  /// Whether it has neither failed nor been closed.
  bool is_alive() const;
  /// Says goodbye behind what waits to be sent; `op` completes when the peer has as well.
  bool start_close(operation& op);
  /// If that is what `id` waits for: only the wait ends.
  bool cancel_close(std::uint64_t id, asio::cancellation_type_t type);

  std::uint64_t next_id() noexcept { return qp_->next_id(); }
  asio::execution_context& context() const noexcept { return qp_->context(); }
  const std::shared_ptr<queue_pair_impl>& queue_pair() const noexcept { return qp_; }
  const memory_pool& pool() const noexcept { return pool_; }
  const connection_options& options() const noexcept { return options_; }
  /// From any thread.
  link_statistics statistics() const noexcept;

protected:
  link_impl(asio::execution_context& context, const memory_pool& pool, handshake::kind kind,
            const connection_options& options);
  ~link_impl() override;

  using lock = std::unique_lock<mutex>;

  /// For what follows the mutex is locked.
  ///@{

  /// The peer is known: makes the parts.
  virtual void make_parts(frame_link& link, const handshake& peer) = 0;
  /// Does what the parts want done; true if there was something.
  virtual bool run_parts(operation_list& done) = 0;
  /// A work request has come back, and what came of it is done.
  virtual void after_event() {}
  /// Adds the payload of a frame of an operation of a part.
  virtual void add_payload(const outgoing_frame& frame, frame_transfer& to) = 0;
  /// Why nothing can be started, if so.
  error_code check() const;
  bool post(link_transfer& t);
  /// What a READ needs before it is posted. On iWARP the peer is told the key of its one element,
  /// and may write by it (RFC 5040, section 5.2): it becomes a key of nothing else, and ends with
  /// the READ.
  error_code open_sink(link_transfer& read);
  /// If it has one.
  void close_sink(link_transfer& t);
  /// Takes back a transfer that waits for room in the queue: true, and it is done at once.
  bool withdraw(link_transfer& t);
  /// The memory of a receive. A message may take it along.
  registered_buffer& received(std::uint32_t slot) noexcept {
    return shared_ ? shared_->receive(slot).memory : receives_[slot]->memory;
  }
  frame_link& frames() noexcept { return *link_; }
  const frame_link& frames() const noexcept { return *link_; }
  /// Ends the connection, from within.
  void fail(const error_code& why);
  bool failing() const noexcept { return failing_; }
  /// Ends a key that the peer has had (a `memory_region` or a `grant_key`), to `memory` of this
  /// side. If that fails so does the connection, and nobody else gets the memory, or the access to
  /// it, as long as the key lives.
  template <class Key>
  bool end_key(Key& key, const registered_buffer& memory, buffer_access& access);
  /// After any event. Throws nothing: without memory for a step the link fails.
  void run(operation_list& done) noexcept;
  /// Does a step that the link cannot do without. If there is no memory for it, the link fails with
  /// `no_memory`, which ends everything on it.
  template <class Step>
  void do_or_fail(Step&& step) noexcept {
    try {
      step();
    } catch (const std::bad_alloc&) {
      lack_memory();
    }
  }
  /// The timers of a link and of the kinds of link.
  enum class timer : std::uint8_t {
    alive,  ///< To ask the peer for a sign of life.
    memory, ///< To look for memory for receives.
    expiry, ///< Of the leases of a connection.
    look,   ///< Of a stream: at what the peer has taken.
    count_
  };
  /// Calls `then` at `when`, while the context runs, as any event is handled: locked, and not if
  /// the link is closed or destroyed. An earlier time replaces a later one.
  void call_at(timer which, protocol_clock::time_point when, void (*then)(link_impl&));
  /// `after_event`. If there is no memory for it, the link fails.
  void end_event(operation_list& done) noexcept;
  /// Whether the device can use the memory: if it is of the pool's protection domain, or none.
  bool is_usable(const registered_buffer& memory) const noexcept;
  ///@}

  /// Counts an operation of the user, which `settle` completes.
  void operation_starting() { cq_->operation_starting(); }
  completion_queue_impl& completion_queue() const noexcept { return *cq_; }
  /// Unlocks, and completes and does what may not be done under the lock.
  void settle(lock& l, operation_list& done);

  mutable mutex mutex_;
  dropped_blocks dropped_;              // once the mutex is unlocked
  counter bytes_sent_, bytes_received_; // which the kinds of link count differently

private:
  friend link_end;
  friend link_receive;
  friend shared_receives_impl;
  friend link_transfer;
  friend frame_transfer;
  friend link_pull;

  error_code open_with(std::shared_ptr<completion_queue_impl> queue,
                       std::shared_ptr<shared_receives_impl> shared);
  error_code make_parts_of(std::shared_ptr<shared_receives_impl> shared);
  error_code make_receives();
  void drive(operation_list& done);
  void stop(operation_list& done);
  void lack_memory() noexcept;
  error_code begin(std::shared_ptr<shared_receives_impl> shared);
  void on_receive(link_receive& r, disposal how);
  void on_transfer(link_transfer& t, disposal how);
  void on_end(disposal how);
  void on_shared_receive(shared_receive& r);
  void on_shared_failure(const error_code& why);
  void on_shared_found();
  bool post_receive(std::uint32_t slot);
  void free_receive(std::uint32_t slot);
  void take_receives();
  void send(std::uint32_t slot, const outgoing_frame& frame);
  void posted();
  template <class Function>
  void returned(operation_list& done, disposal how, Function&& f);
  void end_queue_pair();
  void drop_memory();
  void set_keep_alive();
  static void keep_alive(link_impl& self);
  void look_for_memory();

  completion_service& service_;
  memory_pool pool_;
  handshake::kind kind_;
  connection_options options_;
  std::shared_ptr<queue_pair_impl> qp_;
  std::shared_ptr<completion_queue_impl> cq_;
  std::optional<frame_link> link_;
  std::deque<std::unique_ptr<link_receive>> receives_;
  std::deque<frame_transfer> sends_;
  registered_buffer send_memory_;
  std::vector<std::uint32_t> starved_; // receives for which there is no memory
  std::shared_ptr<shared_receives_impl> shared_;
  operation_list in_hands_;              // of the shared receives
  std::uint32_t hands_ = 0;              // so many
  link_end end_{*this};                  // of the queue pair, if they are shared
  bool left_ = false;                    // the shared receives
  std::size_t posted_ = 0;               // work requests that the device has
  std::shared_ptr<context_member> self_; // as long as there are any
  operation* closing_ = nullptr;
  using timers = std::array<std::unique_ptr<background_timer>, std::size_t(timer::count_)>;
  timers timers_;      // of those that were set; none once the link is closed
  link_transfer sign_; // asks the peer for a sign of life
  bool asking_ = false;
  std::uint64_t signs_ = 0, signs_before_ = 0; // work requests that came back well
  counter frames_sent_, frames_received_, credit_waits_;
  error_code reason_;
  bool connected_ = false;
  bool holding_ = false; // the queue pair, which may not speak first
  bool failing_ = false;
  bool kept_ = false; // by the device: memory of what was posted
  bool told_ = false; // the queue pair, that the link fails
  bool stopped_ = false;
  std::atomic<bool> removed_{false}; // from the service
};

} // namespace asio_rdma::detail
