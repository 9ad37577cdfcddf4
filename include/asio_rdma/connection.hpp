// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/detail/connection_arguments.hpp>
#include <asio_rdma/detail/connection_impl.hpp>
#include <asio_rdma/detail/initiate.hpp>
#include <asio_rdma/detail/open_impl.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/message.hpp>
#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/shared_receives.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

namespace asio_rdma {
/// Messages between two programs, whole, in order and of any size, and operations on each other's
/// memory, as an Asio I/O object. Connected by `acceptor` and `connector`.
///
/// A message of up to the peer's `connection_options::receive_size` less 16 bytes is sent whole
/// into a receive that the peer has posted ahead. A longer one stays where it is: the peer reads it
/// (RDMA READ) when it is waited for there. A sender that is ahead of the receiving program waits;
/// nothing is lost and nothing is buffered beyond the receives.
///
/// *Buffers.* Whatever Asio takes as buffers may be sent, up to 64 of them; a receive may have 16
/// in a sequence of run-time length (`error::too_many_buffers`). Registered memory
/// (`registered_buffer`, `const_buffer`, and what lies in the connection's pool) is not copied,
/// unless the message has at most 240 bytes, or is a long one in several parts, or a short one in
/// more than three; other memory is copied into the pool when the operation is started. A long
/// message that a receive waits for with one registered buffer is read to it at once; the region
/// needs `access::local_write`. What is received into other memory is copied. An operation keeps a
/// `registered_buffer` that it is given by itself; several in a sequence do not compile: what they
/// are viewed by (`const_buffer`, `mutable_buffer`) is the caller's to keep.
///
/// *Errors.* `not_connected`; `invalid_argument` for a `registered_buffer` of another protection
/// domain than the pool's; `error::buffer_in_use`; `error::pool_limit` and others of
/// `memory_pool::allocate`; `message_size` for a message that the peer does not accept and
/// `no_memory` for one that it has no memory for (the connection lives); `broken_pipe` for sends
/// and `eof` for receives after the peer has closed with `async_close`; `operation_aborted` after
/// `close` here; `connection_reset`, `errc::timed_out` and the device's own when the connection has
/// failed; `error::protocol_violation` when the peer has broken the protocol. What had arrived
/// whole before a failure can still be received, up to the first message that had not.
/// `error::device_keeps_memory` where the device does not let go at the end: then the memory of the
/// user's that an operation used, if any, is in use still (a message may have arrived all the
/// same); memory of a pool does not return to it before the device has let go
/// (`memory_pool::trim`).
///
/// *Cancellation.* All types, of every operation. A receive that is cancelled has taken nothing; a
/// message that was being read to its memory is read again for another one. Its handler gets
/// `operation_aborted` at once, or, if the caller keeps that memory (a `mutable_buffer`), when
/// nothing is written to it any more; the content of the memory is indeterminate then. A send that
/// has not begun is taken back. `total` has no effect on a send that has begun. By `partial` and
/// `terminal` the handler of such a send gets `operation_aborted` at once and the message may
/// arrive; the memory of a `registered_buffer` stays with the connection until the device has let
/// go of it. Only where the caller keeps the memory that the device uses (`const_buffer`) the send
/// goes on: then `terminal` ends the connection, and `partial` has no effect, either.
///
/// *Thread safety.* Distinct objects: safe. Shared objects: unsafe, as for Asio's sockets.
template <class Executor = asio::any_io_executor>
class basic_connection {
  using impl_type = detail::connection_impl;

public:
  using executor_type = Executor;
  using native_handle_type = ibv_qp*;
  using options_type = connection_options;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_connection<Executor1>;
  };

  /// A connection that is not open.
  explicit basic_connection(const executor_type& ex) : io_(ex) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_connection(ExecutionContext& context) : io_(context.get_executor()) {}

  /// Opens: see `open`.
  template <class ExecutorOrContext>
  basic_connection(ExecutorOrContext&& ex, const memory_pool& pool,
                   const connection_options& options = {})
      : basic_connection(std::forward<ExecutorOrContext>(ex)) {
    open(pool, options);
  }
  template <class ExecutorOrContext>
  basic_connection(ExecutorOrContext&& ex, const shared_receives& receives,
                   const connection_options& options = {})
      : basic_connection(std::forward<ExecutorOrContext>(ex)) {
    open(receives, options);
  }

  /// The moved-from object is closed.
  basic_connection(basic_connection&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor>
  basic_connection(basic_connection<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_connection& operator=(basic_connection&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  /// As `close`.
  ~basic_connection() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }

  /// Makes a queue pair on the pool's device, in a completion queue that the context's queue pairs
  /// share or in the given one, and posts its receives with memory of the pool. Then it can be
  /// connected. Errors: `already_open`, `invalid_argument` for the options,
  /// `error::completion_queue_full`, `error::wrong_device`, those of `memory_pool::allocate`, or
  /// the system's.
  void open(const memory_pool& pool, const completion_queue& queue,
            const connection_options& options, error_code& ec) {
    detail::open_impl(
        impl_, ec, [&](impl_type& i) { return i.open(queue.impl()); }, io_.context(), pool,
        options);
  }
  void open(const memory_pool& pool, const connection_options& options, error_code& ec) {
    open(pool, completion_queue(), options, ec);
  }
  void open(const memory_pool& pool, const connection_options& options = {}) {
    open(pool, completion_queue(), options);
  }
  void open(const memory_pool& pool, const completion_queue& queue,
            const connection_options& options = {}) {
    error_code ec;
    open(pool, queue, options, ec);
    detail::throw_if(ec, "connection::open");
  }
  /// The same with receives that it shares with others: memory, completion queue and the size of
  /// the receives are theirs, and they are of the object's execution context. Its own
  /// `receives` are the most that it has of them, at least `shared_receives_options::per_link`.
  /// Errors besides: `bad_descriptor` if there are none,
  /// `error::shared_receives_full`, `error::shared_receives_closed`.
  void open(const shared_receives& receives, const connection_options& options, error_code& ec) {
    if (!receives.impl()) {
      ec = asio::error::bad_descriptor;
      return;
    }
    detail::open_impl(
        impl_, ec, [&](impl_type& i) { return i.open(receives.impl()); }, io_.context(),
        receives.pool(), options);
  }
  void open(const shared_receives& receives, const connection_options& options = {}) {
    error_code ec;
    open(receives, options, ec);
    detail::throw_if(ec, "connection::open");
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// The queue pair that carries it, to look at. Null when not open, or when it has failed.
  native_handle_type native_handle() const noexcept {
    return impl_ ? impl_->target_queue_pair()->native_handle() : nullptr;
  }
  const memory_pool& pool() const noexcept { return impl_->pool(); }
  /// The options in force.
  const connection_options& options() const noexcept { return impl_->options(); }
  const std::shared_ptr<impl_type>& impl() const noexcept { return impl_; }

  /// What has been done since it was opened; nothing if it is not open. From any thread, at any
  /// time but while another one opens, closes or moves the object.
  connection_statistics statistics() const noexcept {
    return impl_ ? impl_->statistics() : connection_statistics();
  }

  /// Ends the connection now. Every operation ends with `operation_aborted` if it was not complete,
  /// once the device has let go of its memory. What the peer has not received is lost.
  void close() {
    if (impl_)
      std::exchange(impl_, nullptr)->close();
  }

  /// Ends every wait for a message, for immediate data or for a region with `operation_aborted`.
  /// Nothing is lost.
  void cancel() {
    if (impl_)
      impl_->cancel_receives();
  }

  /// Says goodbye behind everything that was sent before, and waits for the peer to do so as well:
  /// then everything has arrived, and the connection has ended. Nothing can be sent or received any
  /// more: receives end with `operation_aborted`, and what the peer still sends is refused or
  /// dropped. Signature `void(error_code)`. Errors: as the connection's, if it fails before.
  /// Cancellation: by `partial` and `terminal` only the wait ends; `total` has no effect.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_close(Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_close{this}, token);
  }

  /// Sends one message. It is complete when the peer's device has received it, or its program, if
  /// it is a long one, has read it. Signature `void(error_code, std::size_t bytes)`.
  template <class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_send(const Buffers& buffers, Token&& token = {}) {
    return asio::async_initiate<Token, detail::sent_result::signature>(
        initiate_send{this}, token, buffers, std::optional<std::uint32_t>());
  }
  /// The same, with 32 bits that the message carries along.
  template <class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, std::uint32_t immediate, Token&& token = {}) {
    return asio::async_initiate<Token, detail::sent_result::signature>(
        initiate_send{this}, token, buffers, std::optional<std::uint32_t>(immediate));
  }

  /// Takes the next message, with its memory. Signature `void(error_code, message)`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive(Token&& token = {}) {
    return asio::async_initiate<Token, detail::message_result::signature>(
        initiate_receive<detail::message_result>{this}, token, detail::message_in::kind::message);
  }

  /// Copies the next message into buffers of the caller's, Asio's or registered ones, and gives its
  /// size. Signature `void(error_code, std::size_t)`. If it is longer than the buffers the error is
  /// `message_size`, with its size, and it is still there to be received. A `registered_buffer` is
  /// kept, and written (see `buffer_access`), until then, or, if it is cancelled, until the device
  /// has let go of it; `error::buffer_in_use` if it cannot be.
  template <class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  requires asio::is_mutable_buffer_sequence<Buffers>::value //
      auto
      async_receive(const Buffers& buffers, Token&& token = {}) {
    return asio::async_initiate<Token, detail::size_result::signature>(initiate_copy{this}, token,
                                                                       buffers);
  }

  /// RDMA WRITE to memory of the peer, whose program takes no part. Signature
  /// `void(error_code, std::size_t bytes)`. It is complete when the peer's device has the bytes; on
  /// iWARP already when they are on their way: a read behind it, or an answer, tells more.
  ///
  /// This and the operations below use registered memory where it is, and other memory by way of
  /// the pool. Errors, besides the connection's: `error::remote_range` if `to` is shorter than the
  /// buffers, `message_size` over 2^31 bytes, `error::too_many_buffers` over four registered ones,
  /// or to read to, and over 64 in any case; then nothing is posted, and the connection lives. What
  /// the device or the peer's device refuses ends the connection, with that error
  /// (`IBV_WC_REM_ACCESS_ERR`, for instance).
  ///
  /// Cancellation: as for a send. One that waits for room in the device's queue is taken back;
  /// `total` has no effect on one that does not; otherwise it may have happened.
  template <class Buffers, remote_memory Remote,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_write(const Buffers& buffers, const Remote& to, Token&& token = {}) {
    return asio::async_initiate<Token, detail::sent_result::signature>(
        initiate_write{this}, token, buffers, to, std::optional<std::uint32_t>());
  }
  /// The same, and then the peer gets 32 bits by `async_receive_immediate`. It is complete when its
  /// device has received these as well.
  template <class Buffers, remote_memory Remote,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_write(const Buffers& buffers, const Remote& to, std::uint32_t immediate,
                   Token&& token = {}) {
    return asio::async_initiate<Token, detail::sent_result::signature>(
        initiate_write{this}, token, buffers, to, std::optional<std::uint32_t>(immediate));
  }

  /// Waits for the peer's next `async_write` with 32 bits: what it wrote is there. Signature
  /// `void(error_code, std::uint32_t)`. In the order of the writes, apart from messages.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive_immediate(Token&& token = {}) {
    return asio::async_initiate<Token, detail::immediate_result::signature>(
        initiate_receive<detail::immediate_result>{this}, token, detail::message_in::kind::written);
  }

  /// RDMA READ from memory of the peer, as many bytes as the buffers have. Signature
  /// `void(error_code, std::size_t bytes)`. See `async_write`. A read has no effect at the peer, so
  /// `total` does what `partial` does. A cancelled read leaves a `registered_buffer` in use until
  /// the device has let go of it, and other memory untouched.
  template <class Buffers, remote_memory Remote,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(asio::is_mutable_buffer_sequence<Buffers>::value || mutable_buffer_sequence<Buffers>) //
      auto async_read(const Buffers& buffers, const Remote& from, Token&& token = {}) {
    return asio::async_initiate<Token, detail::sent_result::signature>(initiate_read{this}, token,
                                                                       buffers, from);
  }

  /// Atomic, on the first eight bytes at `target`: if they are `expected` they become `desired`.
  /// Signature `void(error_code, std::uint64_t old)`; it has happened if `old` is `expected`.
  /// Atomic to other such operations by way of the same device. Errors, besides those of
  /// `async_write`: `error::misaligned`, and `operation_not_supported` where the device has no
  /// atomics. Cancellation: as for a write from memory that the library keeps.
  template <remote_memory Remote, class Token = asio::default_completion_token_t<executor_type>>
  auto async_compare_and_swap(const Remote& target, std::uint64_t expected, std::uint64_t desired,
                              Token&& token = {}) {
    return asio::async_initiate<Token, detail::value_result::signature>(
        initiate_atomic{this}, token, target, IBV_WR_ATOMIC_CMP_AND_SWP, expected, desired);
  }
  /// The same: adds `addend`, modulo 2^64.
  template <remote_memory Remote, class Token = asio::default_completion_token_t<executor_type>>
  auto async_fetch_add(const Remote& target, std::uint64_t addend, Token&& token = {}) {
    return asio::async_initiate<Token, detail::value_result::signature>(
        initiate_atomic{this}, token, target, IBV_WR_ATOMIC_FETCH_AND_ADD, addend,
        std::uint64_t(0));
  }

  /// Asks the peer for `bytes` of its memory, zeroed, with the rights (`remote_read`,
  /// `remote_write`, `remote_atomic`) and for so long; 0 is what the peer gives by default, and the
  /// peer may give less. Signature `void(error_code, remote_region)`. Errors, besides the
  /// connection's: `error::rights_refused`; `error::remote_memory_limit`; `no_memory`;
  /// `invalid_argument` for no bytes or no rights. Supports all cancellation types: what is granted
  /// after that is released.
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, access>) //
      auto async_request_memory(std::uint64_t bytes, Token&& token = {}) {
    return async_request_memory(bytes, access::remote_read | access::remote_write, microseconds(0),
                                std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::convertible_to<std::decay_t<Token>, std::chrono::microseconds>) //
      auto async_request_memory(std::uint64_t bytes, access rights, Token&& token = {}) {
    return async_request_memory(bytes, rights, microseconds(0), std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_request_memory(std::uint64_t bytes, access rights, std::chrono::microseconds lease,
                            Token&& token = {}) {
    return asio::async_initiate<Token, detail::region_result::signature>(
        initiate_request{this}, token, bytes, rights, lease);
  }

  /// Asks for a lease of so much from now, or, with 0, of as much as the owner gives by default.
  /// The deadline does not become earlier. Signature `void(error_code)`. Errors and cancellation as
  /// for a request; `error::lease_expired` and `error::lease_revoked`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_renew(const remote_region& region, std::chrono::microseconds lease,
                   Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_renew{this}, token, region,
                                                         lease);
  }

  /// Lends memory of this side to the peer, whose program gets it by `async_receive_region`: with
  /// `remote_read`, or other rights, and for good, or for so long from then. While it is lent the
  /// memory is read here, or, if the peer may write it, written: see `buffer_access`. That ends
  /// when the peer has let go of it, by `revoke`, with the lease, or with the connection. It is
  /// complete when the peer's device has heard of it. Signature `void(error_code)`. Errors, besides
  /// the connection's: `error::buffer_in_use`, `invalid_argument` for no bytes or no rights, and
  /// those of `memory_region`. Cancellation: by `partial` and `terminal` only the wait ends, and
  /// the memory may be lent all the same; `total` has no effect.
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, access>) //
      auto async_send_region(const registered_buffer& memory, Token&& token = {}) {
    return async_send_region(memory, access::remote_read, microseconds::max(),
                             std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::convertible_to<std::decay_t<Token>, std::chrono::microseconds>) //
      auto async_send_region(const registered_buffer& memory, access rights, Token&& token = {}) {
    return async_send_region(memory, rights, microseconds::max(), std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_region(const registered_buffer& memory, access rights,
                         std::chrono::microseconds lease, Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_lend{this}, token, memory, rights,
                                                         lease);
  }

  /// Hands memory of the peer back, all that the lease is for: the peer's program gets it by
  /// `async_receive_region`, behind all that was written to it. No handle is of use any more.
  /// Signature `void(error_code)`. Errors, besides the connection's: `error::lease_expired`,
  /// `error::lease_revoked`, `invalid_argument` for a region of another connection. Cancellation:
  /// by `partial` and `terminal` only the wait ends, and the region may be handed back all the
  /// same; `total` has no effect.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_region(const remote_region& region, Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_give{this}, token, region);
  }

  /// Takes the next region that the peer has sent: a `registered_buffer` if it is memory of this
  /// side that is handed back, which the peer can reach no longer, and a `remote_region` if it is
  /// the peer's. Signature `void(error_code, std::variant<registered_buffer, remote_region>)`.
  /// Supports all cancellation types: no region is lost.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive_region(Token&& token = {}) {
    return asio::async_initiate<Token, detail::arrival_result::signature>(initiate_region{this},
                                                                          token);
  }

  /// Takes back what the peer may reach of these bytes, or of any: all that was granted or lent of
  /// them. When it returns, the peer's device is refused; an operation of the peer that was under
  /// way has ended (siw goes on answering a READ that it has begun to answer), one that comes later
  /// ends the connection. What the device is still making the key of the peer never gets; that
  /// memory is in use until the device is done. Gives the number of grants.
  std::size_t revoke(const registered_buffer& memory) { return impl_ ? impl_->revoke(&memory) : 0; }
  std::size_t revoke() { return impl_ ? impl_->revoke(nullptr) : 0; }

  /// Waits until the connection has failed or was closed, for the reason. Supports all cancellation
  /// types.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_disconnect(Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_wait{this}, token);
  }

private:
  template <class>
  friend class basic_connection;

  struct initiation {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return self->get_executor(); }
    basic_connection* self;
  };

  struct initiate_send : initiation {
    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers,
                    std::optional<std::uint32_t> immediate) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::message_send, detail::sent_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [&](impl_type& i, auto& op) {
            return i.start(op, detail::payload_of<Buffers>(buffers), immediate);
          });
    }
  };

  template <class Result, class Handler>
  void start_remote(Handler&& handler, const detail::remote_work& w) {
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    detail::start_operation<detail::remote_operation, Result, 0>(
        impl_, io_, h, [](auto&) { return true; },
        [&](impl_type& i, auto& op) {
          return i.start(static_cast<detail::remote_operation&>(op), {&w, 1});
        });
  }

  struct initiate_write : initiation {
    template <class Handler, class Buffers, class Remote>
    void operator()(Handler&& handler, const Buffers& buffers, const Remote& to,
                    std::optional<std::uint32_t> immediate) const {
      const detail::payload_of<Buffers> p(buffers);
      detail::remote_work w = detail::work_on(to, IBV_WR_RDMA_WRITE);
      w.local = &p;
      w.immediate = immediate;
      this->self->template start_remote<detail::sent_result>(std::forward<Handler>(handler), w);
    }
  };

  struct initiate_read : initiation {
    template <class Handler, class Buffers, class Remote>
    void operator()(Handler&& handler, const Buffers& buffers, const Remote& from) const {
      const detail::payload_of<Buffers> p(buffers);
      detail::remote_work w = detail::work_on(from, IBV_WR_RDMA_READ);
      w.local = &p;
      this->self->template start_remote<detail::sent_result>(std::forward<Handler>(handler), w);
    }
  };

  struct initiate_atomic : initiation {
    template <class Handler, class Remote>
    void operator()(Handler&& handler, const Remote& target, ibv_wr_opcode opcode,
                    std::uint64_t compare_add, std::uint64_t swap) const {
      detail::remote_work w = detail::work_on(target, opcode);
      w.compare_add = compare_add;
      w.swap = swap;
      this->self->template start_remote<detail::value_result>(std::forward<Handler>(handler), w);
    }
  };

  using microseconds = std::chrono::microseconds;
  using purpose = detail::region_operation::purpose;

  template <class Result, class Handler, class Prepare>
  void start_region(Handler&& handler, Prepare&& prepare) {
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    detail::start_operation<detail::region_operation, Result, 0>(
        impl_, io_, h,
        [&](detail::region_operation& op) {
          prepare(op);
          return true;
        },
        [](impl_type& i, auto& op) { return i.start(static_cast<detail::region_operation&>(op)); });
  }

  struct initiate_request : initiation {
    template <class Handler>
    void operator()(Handler&& handler, std::uint64_t bytes, access rights,
                    microseconds lease) const {
      this->self->template start_region<detail::region_result>(
          std::forward<Handler>(handler), [&](detail::region_operation& op) {
            op.why = purpose::request;
            op.lease.bytes = bytes;
            op.lease.rights = detail::to_rights(rights);
            op.lease.lease = lease;
          });
    }
  };

  struct initiate_renew : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const remote_region& region, microseconds lease) const {
      this->self->template start_region<detail::no_result>(std::forward<Handler>(handler),
                                                           [&](detail::region_operation& op) {
                                                             op.why = purpose::renew;
                                                             op.region = region;
                                                             op.lease.lease = lease;
                                                           });
    }
  };

  struct initiate_give : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const remote_region& region) const {
      this->self->template start_region<detail::no_result>(std::forward<Handler>(handler),
                                                           [&](detail::region_operation& op) {
                                                             op.why = purpose::give;
                                                             op.region = region;
                                                           });
    }
  };

  struct initiate_region : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      this->self->template start_region<detail::arrival_result>(
          std::forward<Handler>(handler),
          [](detail::region_operation& op) { op.why = purpose::receive; });
    }
  };

  struct initiate_lend : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const registered_buffer& memory, access rights,
                    microseconds lease) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::region_operation, detail::no_result, 0>(
          this->self->impl_, this->self->io_, h,
          [&](detail::region_operation& op) {
            op.lease.rights = detail::to_rights(rights);
            op.lease.lease = lease;
            return true;
          },
          [&](impl_type& i, auto& op) {
            return i.start(static_cast<detail::region_operation&>(op), memory);
          });
    }
  };

  template <class Result>
  struct initiate_receive : initiation {
    template <class Handler>
    void operator()(Handler&& handler, detail::message_in::kind what) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::message_receive, Result, 0>(
          this->self->impl_, this->self->io_, h,
          [&](auto& op) {
            op.request.what = what;
            return true;
          },
          [](impl_type& i, auto& op) {
            return i.start(static_cast<detail::message_receive&>(op));
          });
    }
  };

  struct initiate_copy : initiation {
    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers) const {
      constexpr std::size_t most = detail::max_elements<Buffers>();
      constexpr std::size_t most_bytes = detail::elements<1>::max_bytes; // of a message
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::message_receive, detail::size_result, most>(
          this->self->impl_, this->self->io_, h,
          [&](auto& op) {
            op.owning = false;
            op.targets = op.sges();
            detail::for_each_buffer(buffers, [&](const const_buffer& b) {
              if (op.target_count == most)
                op.ec = error::too_many_buffers;
              else
                op.targets[op.target_count++] = detail::element_of(b.first(most_bytes));
              return !op.ec;
            });
            if constexpr (std::same_as<Buffers, registered_buffer>) {
              op.memory = buffers;
              if (!op.ec)
                op.ec = op.access.try_begin_write(buffers);
            }
            return !op.ec;
          },
          [](impl_type& i, auto& op) {
            return i.start(static_cast<detail::message_receive&>(op));
          });
    }
  };

  struct initiate_close : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::operation, detail::no_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [](impl_type& i, auto& op) { return i.start_close(op); });
    }
  };

  struct initiate_wait : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::operation, detail::no_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [](impl_type& i, auto& op) {
            return i.queue_pair()->start(static_cast<detail::operation&>(op));
          });
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using connection = basic_connection<>;

} // namespace asio_rdma
