// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/detail/connection/connection_arguments.hpp>
#include <asio_rdma/detail/connection/connection_face.hpp>
#include <asio_rdma/detail/connection/loan_revocation.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/link/open_calls.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/detail/queues/results.hpp>
#include <asio_rdma/detail/verbs/wrong_call.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/message.hpp>
#include <asio_rdma/revocation.hpp>
#include <asio_rdma/shared_receives.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace asio_rdma {
/// An Asio I/O object that carries messages between two programs, whole, in order and of any size,
/// and performs operations on the peer's memory. It is connected by `acceptor` and `connector`.
///
/// A message that fits the peer's receives is sent whole, into one of them. They have
/// `connection_options::receive_size` less 16 bytes for it at first, and grow to the messages of
/// the peer up to `connection_options::max_receive_size`. A longer message stays in the sender's
/// memory until a receive waits for it at the peer, which then reads it by RDMA READ. If the sender
/// is ahead of the receiving program, its sends wait; no message is lost, and nothing is buffered
/// beyond the receives.
///
/// *Buffers.* Any Asio buffer sequence of up to 64 buffers can be sent; a receive may have 16
/// buffers in a sequence of run-time length (`error::too_many_buffers`). Registered memory
/// (`registered_buffer`, `const_buffer`, and memory of the connection's pool) is not copied, with
/// three exceptions: messages of at most 240 bytes, long messages in several parts, and short
/// messages in more than three parts. Other memory is copied into the pool when the operation is
/// started. If a receive with one registered buffer waits for a long message, the message is read
/// into that buffer directly; the region needs `access::local_write`. Messages that are received
/// into other memory are copied. An operation keeps a single `registered_buffer` alive. A sequence
/// of `registered_buffer` objects is ill-formed: pass views (`const_buffer`, `mutable_buffer`), and
/// keep the buffers alive.
///
/// *Errors.* `not_connected`; `invalid_argument` for a `registered_buffer` of another protection
/// domain than the pool's; `error::buffer_in_use`; `error::pool_limit`, `error::memory_limit` and
/// others of `memory_pool::allocate`; `error::peer_message_limit` for a message that the peer does
/// not accept and `error::peer_out_of_memory` for one that the peer has no memory for (after both
/// the connection remains usable); `no_memory` if this side lacks memory; `broken_pipe` for sends
/// and `eof` for receives after the peer has closed with `async_close`; `operation_aborted` after
/// `close` here; `error::shared_receives_closed`; when the connection has failed
/// `connection_reset`, `errc::timed_out` for a silent peer, or the device's own errors, such as
/// `error::device_removed`, `error::device_fatal` and `error::queue_pair_fatal`;
/// `error::peer_access_refused` when the device has refused a request of the peer's;
/// `error::protocol_violation` when the peer has broken the protocol. After a failure, messages
/// that had arrived completely can still be received, up to the first that had not.
/// `error::device_keeps_memory` if the device refuses to release the memory: the user's memory that
/// the operation used, if any, is still in use (a message may have arrived nevertheless). Memory of
/// a pool returns to the pool only when the device has released it
/// (`memory_pool::trim`).
///
/// *Cancellation.* All types, for every operation. A cancelled receive has taken no message; a
/// message that was being read into its memory is read again for another receive. Its handler gets
/// `operation_aborted` at once, or, if the caller owns the memory (a `mutable_buffer`), when the
/// device no longer writes to the memory; the content of the memory is then indeterminate. A send
/// that has not begun is withdrawn. For a send that has begun, `total` has no effect. By `partial`
/// and `terminal` the handler of such a send gets `operation_aborted` at once and the message may
/// arrive; the memory of a `registered_buffer` stays with the connection until the device has
/// released it. Only if the caller owns the memory that the device uses (`const_buffer`), the send
/// continues: then `terminal` ends the connection, and `partial` has no effect, either.
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
  /// Explains wrong arguments.
  template <class ExecutorOrContext, class Source, class... Rest>
  requires(!detail::opens_with<connection_options, Source, Rest...>)
      basic_connection(ExecutorOrContext&& ex, const Source&, const Rest&...)
      : basic_connection(std::forward<ExecutorOrContext>(ex)) {
    detail::wrong_arguments_of_constructor<Source, Rest...>();
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

  /// Makes a queue pair on the pool's device, and posts its receives with memory of the pool. The
  /// queue pair uses the given completion queue, or one that the context's queue pairs share. The
  /// connection can then be connected. Errors: `already_open`, `invalid_argument` for the options,
  /// `error::completion_queue_full`, `error::wrong_device`, those of `memory_pool::allocate`, or
  /// the system's.
  void open(const memory_pool& pool, const completion_queue& queue,
            const connection_options& options, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::open_connection(io_.context(), pool, options, queue.impl(), ec);
    });
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
  /// Opens the object, like the functions above, with shared receives. `receives` determines the
  /// memory, the completion queue and the size of the receives, and must belong to the object's
  /// execution context. `connection_options::receives` limits how many of the shared receives the
  /// connection uses; a value below `shared_receives_options::per_link` counts as `per_link`.
  /// Additional errors: `bad_descriptor` if `receives` is not open, `error::shared_receives_full`,
  /// `error::shared_receives_closed`.
  void open(const shared_receives& receives, const connection_options& options, error_code& ec) {
    if (!receives.impl()) {
      ec = asio::error::bad_descriptor;
      return;
    }
    detail::open_object(impl_, ec, [&] {
      return detail::open_connection(io_.context(), receives.pool(), options, receives.impl(), ec);
    });
  }
  void open(const shared_receives& receives, const connection_options& options = {}) {
    error_code ec;
    open(receives, options, ec);
    detail::throw_if(ec, "connection::open");
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// The underlying queue pair, for inspection only. Null if the connection is not open or its
  /// queue pair has failed.
  native_handle_type native_handle() const noexcept {
    return impl_ ? detail::native_handle(*impl_) : nullptr;
  }
  /// The pool with which the connection was opened, or its own (`connection_options::own_domain`).
  const memory_pool& pool() const noexcept { return detail::pool(*impl_); }
  /// The options in force.
  const connection_options& options() const noexcept { return detail::options(*impl_); }
  const std::shared_ptr<impl_type>& impl() const noexcept { return impl_; }

  /// The counters since the connection was opened; zeros if it is not open. May be called from any
  /// thread, except while another thread opens, closes or moves the object.
  connection_statistics statistics() const noexcept {
    return impl_ ? detail::statistics(*impl_) : connection_statistics();
  }
  /// From now on the object measures the latencies of its work requests, until it is closed.
  /// Reading the clock twice costs some ten nanoseconds for each work request. To be called before
  /// the object is connected, or by the thread that runs its context. Does nothing if the object is
  /// not open. Throws `std::bad_alloc`.
  void measure_latency() {
    if (impl_)
      detail::measure_latency(*impl_);
  }
  /// The measured latencies; zeros if none are measured. Threads: as `statistics`.
  link_latencies latencies() const noexcept {
    return impl_ ? detail::latencies(*impl_) : link_latencies();
  }

  /// Ends the connection immediately. Every operation that is not complete ends with
  /// `operation_aborted`, once the device has released its memory. Messages that the peer has not
  /// received are lost.
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }

  /// Cancels every pending receive of a message, of immediate data or of a region, with
  /// `operation_aborted`. No data is lost.
  void cancel() {
    if (impl_)
      detail::cancel_receives(*impl_);
  }

  /// Closes the connection gracefully: sends a goodbye after everything that was sent before, and
  /// waits for the peer's goodbye, which the peer's library sends by itself. The peer's program
  /// learns of the close when that has arrived, or a second after it was sent, and may then destroy
  /// its connection. On completion everything has arrived, and the connection has ended. Further
  /// sends and receives are impossible: pending receives end with `operation_aborted`, and messages
  /// that the peer still sends are refused or dropped. Signature `void(error_code)`. Errors: as the
  /// connection's, if it fails before. Cancellation: `partial` and `terminal` end only the wait;
  /// `total` has no effect.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_close(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(
        initiate_plain<&detail::start_close, detail::closed_result>{this}, token);
  }

  /// Sends one message. The operation completes when the peer's device has received the message,
  /// or, for a long message, when the peer's program has read it. Small messages that are sent
  /// while earlier ones are on their way share a frame, and complete together
  /// (`connection_options::gather`). Device-only memory (`const_buffer`) is sent or offered in
  /// place, by a frame of its own; `operation_not_supported` if the device sends from one
  /// scatter/gather element, for over three buffers, and for several that are longer than the
  /// peer's receives. Signature `void(error_code, std::size_t bytes)`.
  template <detail::memory_to_send Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_send(const Buffers& buffers, Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_send{this}, token, buffers, std::optional<std::uint32_t>());
  }
  /// Sends one message with 32 bits of immediate data, like the function above.
  template <detail::memory_to_send Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, std::uint32_t immediate, Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_send{this}, token, buffers, std::optional<std::uint32_t>(immediate));
  }

  /// Receives the next message, with its memory. Signature `void(error_code, message)`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive(Token&& token = {}) {
    return detail::begin_async<Token, detail::message_result::signature>(
        initiate_receive<detail::message_result>{this}, token, detail::message_in::kind::message);
  }

  /// Copies the next message into the caller's buffers, Asio's or registered ones, and reports its
  /// size. Signature `void(error_code, std::size_t)`. If the message is longer than the buffers,
  /// the error is `message_size`, with the message's size, and the message can still be received.
  /// The operation keeps a `registered_buffer`, with write access (see `buffer_access`), until it
  /// completes, or, if it is cancelled, until the device has released the buffer;
  /// `error::buffer_in_use` if write access conflicts.
  ///
  /// Device-only memory (`const_buffer`) can receive a message that the peer offers because it is
  /// longer than the receives. For a message that was sent whole, or was read already for a receive
  /// that was cancelled, the error is `operation_not_supported`, with the message's size, and the
  /// message can still be received into other memory. The same error, with 0, for several buffers.
  template <detail::memory_to_fill Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive(const Buffers& buffers, Token&& token = {}) {
    return detail::begin_async<Token, detail::size_result::signature>(initiate_copy{this}, token,
                                                                      buffers);
  }

  /// RDMA WRITE to memory of the peer, whose program takes no part. Signature `void(error_code,
  /// std::size_t bytes)`. The operation completes when the peer's device has the bytes; on iWARP
  /// already when the bytes have been sent. A later read, or an answer of the peer, confirms that
  /// the bytes have arrived.
  ///
  /// This operation and those below access registered memory directly, and other memory through the
  /// pool. More bytes than `device::max_message_bytes` become several work requests. Errors,
  /// besides the connection's: for a `remote_region`, `error::lease_expired`,
  /// `error::lease_revoked`, `error::rights_refused`, and `invalid_argument` if it is of another
  /// connection; `error::remote_range` if `to` is shorter than the buffers,
  /// `error::too_many_buffers` for over four registered buffers or over four buffers to read into,
  /// and for over 64 in any case; `operation_not_supported` for device-only memory in more buffers
  /// than one work request has. After these nothing is posted, and the connection remains usable.
  /// If the device or the peer's device refuses the
  /// operation, the connection ends with that error (`IBV_WC_REM_ACCESS_ERR`, for instance).
  ///
  /// Cancellation: as for a send. An operation that waits for room in the device's queue is
  /// withdrawn; for one that does not wait, `total` has no effect; otherwise the operation may have
  /// happened.
  template <detail::memory_to_send Buffers, remote_memory Remote,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_write(const Buffers& buffers, const Remote& to, Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_transfer<IBV_WR_RDMA_WRITE>{this}, token, buffers, to);
  }
  /// RDMA WRITE, like the function above; then the peer receives 32 bits by
  /// `async_receive_immediate`. The operation completes when the peer's device has received these
  /// 32 bits as well.
  template <detail::memory_to_send Buffers, remote_memory Remote,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_write(const Buffers& buffers, const Remote& to, std::uint32_t immediate,
                   Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_transfer<IBV_WR_RDMA_WRITE>{this}, token, buffers, to,
        std::optional<std::uint32_t>(immediate));
  }

  /// Waits for the peer's next `async_write` with 32 bits: on completion the written bytes are in
  /// place. Signature `void(error_code, std::uint32_t)`. The values arrive in the order of the
  /// writes, but independently of messages.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive_immediate(Token&& token = {}) {
    return detail::begin_async<Token, detail::immediate_result::signature>(
        initiate_receive<detail::immediate_result>{this}, token, detail::message_in::kind::written);
  }

  /// RDMA READ from memory of the peer, as many bytes as the buffers have. Signature
  /// `void(error_code, std::size_t bytes)`. See `async_write`. A read has no effect at the peer, so
  /// `total` does what `partial` does. A cancelled read leaves a `registered_buffer` in use until
  /// the device has released it, and other memory untouched.
  template <detail::memory_to_fill Buffers, remote_memory Remote,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_read(const Buffers& buffers, const Remote& from, Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_transfer<IBV_WR_RDMA_READ>{this}, token, buffers, from);
  }

  /// Atomic compare-and-swap on the first eight bytes at `target`: if they equal `expected`, they
  /// become `desired`. Signature `void(error_code, std::uint64_t old)`; the swap has happened if
  /// `old` is `expected`. It is atomic with respect to other atomic operations of the same device.
  /// Errors, besides those of `async_write`: `error::misaligned`, and `operation_not_supported`
  /// where the device has no atomics. Cancellation: as for a write from memory that the library
  /// owns.
  template <remote_memory Remote, class Token = asio::default_completion_token_t<executor_type>>
  auto async_compare_and_swap(const Remote& target, std::uint64_t expected, std::uint64_t desired,
                              Token&& token = {}) {
    return detail::begin_async<Token, detail::value_result::signature>(
        initiate_atomic<IBV_WR_ATOMIC_CMP_AND_SWP>{this}, token, target, expected, desired);
  }
  /// Atomic fetch-and-add: adds `addend`, modulo 2^64. Otherwise as `async_compare_and_swap`.
  template <remote_memory Remote, class Token = asio::default_completion_token_t<executor_type>>
  auto async_fetch_add(const Remote& target, std::uint64_t addend, Token&& token = {}) {
    return detail::begin_async<Token, detail::value_result::signature>(
        initiate_atomic<IBV_WR_ATOMIC_FETCH_AND_ADD>{this}, token, target, addend,
        std::uint64_t(0));
  }

  /// Requests `bytes` of zeroed memory from the peer, with the given rights (`remote_read`,
  /// `remote_write`, `remote_atomic`) and lease. A lease of 0 means the peer's default; the peer
  /// may grant a shorter lease. Signature `void(error_code, remote_region)`. Errors, besides the
  /// connection's: `error::rights_refused`; `error::remote_memory_limit`;
  /// `error::peer_out_of_memory` if the peer cannot allocate or register the memory; `no_memory` if
  /// this side lacks memory; `invalid_argument` for no bytes or no rights. Cancellation: all types;
  /// a grant that arrives afterwards is released.
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
    return detail::begin_async<Token, detail::region_result::signature>(
        initiate_region<purpose::request, detail::region_result>{this}, token, bytes, rights,
        lease);
  }

  /// Renews a lease, for the given time from now, or, with 0, for the owner's default. The deadline
  /// does not become earlier. Signature `void(error_code)`. Errors and cancellation as for
  /// `async_request_memory`; also `error::lease_expired` and `error::lease_revoked`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_renew(const remote_region& region, std::chrono::microseconds lease,
                   Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(
        initiate_region<purpose::renew, detail::no_result>{this}, token, region, 0U, lease);
  }

  /// Lends memory of this side to the peer, whose program receives it by `async_receive_region`,
  /// with `tag`. By default the right is `remote_read`, the loan is unlimited, and the tag is 0; a
  /// lease begins when the memory is lent. While the memory is lent, it counts as being read here,
  /// or, if the peer may write it, as being written: see `buffer_access`. The loan ends when the
  /// peer has released the region, by `revoke`, with the lease, or with the connection. The
  /// operation completes when the peer's device has received the notification. Signature
  /// `void(error_code)`. Errors, besides the connection's: `error::buffer_in_use`,
  /// `invalid_argument` for no bytes or no rights, and those of `memory_region`. The memory may
  /// belong to another protection domain, because each loan registers it. The key of device-only
  /// memory is not confined to the peer's queue pair. Cancellation: `partial` and `terminal` end
  /// only the wait, and the memory may be lent nevertheless; `total` has no effect.
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, access> && !std::integral<std::decay_t<Token>>) //
      auto async_send_region(const registered_buffer& memory, Token&& token = {}) {
    return async_send_region(memory, access::remote_read, microseconds::max(), 0,
                             std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_region(const registered_buffer& memory, std::uint64_t tag, Token&& token = {}) {
    return async_send_region(memory, access::remote_read, microseconds::max(), tag,
                             std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::convertible_to<std::decay_t<Token>, std::chrono::microseconds>) //
      auto async_send_region(const registered_buffer& memory, access rights, Token&& token = {}) {
    return async_send_region(memory, rights, microseconds::max(), 0, std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_send_region(const registered_buffer& memory, access rights,
                             std::chrono::microseconds lease, Token&& token = {}) {
    return async_send_region(memory, rights, lease, 0, std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_region(const registered_buffer& memory, access rights,
                         std::chrono::microseconds lease, std::uint64_t tag, Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(initiate_lend{this}, token, memory, rights,
                                                        lease, tag);
  }

  /// Hands the peer's memory back to it, all that the lease covers. The peer's program receives it
  /// by `async_receive_region`, with `tag` (0 by default), after everything that was written to it.
  /// All handles to the region become useless. Signature `void(error_code)`. Errors, besides the
  /// connection's: `error::lease_expired`, `error::lease_revoked`, `invalid_argument` for a region
  /// of another connection. Cancellation: `partial` and `terminal` end only the wait, and the
  /// region may be handed back nevertheless; `total` has no effect.
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_send_region(const remote_region& region, Token&& token = {}) {
    return async_send_region(region, 0, std::forward<Token>(token));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_region(const remote_region& region, std::uint64_t tag, Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(
        initiate_region<purpose::give, detail::no_result>{this}, token, region, tag);
  }

  /// Receives the next region that the peer has sent, with its tag: a `registered_buffer` if the
  /// peer hands back memory of this side, which the peer can no longer access, or a `remote_region`
  /// if the memory is the peer's. Signature `void(error_code, received_region)`; a handler may take
  /// a `std::variant<registered_buffer, remote_region>` instead, without the tag. Cancellation: all
  /// types; no region is lost.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive_region(Token&& token = {}) {
    return detail::begin_async<Token, detail::arrival_result::signature>(
        initiate_region<purpose::receive, detail::arrival_result>{this}, token);
  }

  /// Revokes every grant and loan of these bytes, or of all memory, to the peer, and lets the peer
  /// finish. The peer's new operations fail there with `error::lease_revoked`, and the connection
  /// remains usable. When the peer confirms that its operations on the memory have ended, or when
  /// `grace` is over, the keys end. The operation completes when they have ended: the peer's device
  /// can no longer access the memory, and the bytes of the peer's writes are in it. After that,
  /// only a peer that ignores the revocation, or needs longer than the grace, meets the refusal of
  /// the device, which ends the connection.
  ///
  /// @param memory  the bytes; without it, all memory
  /// @param grace  the longest wait for the peer, counted from the call; not positive: none, as for
  /// `revoke`; `microseconds::max()`: no limit. The end of a lease may end the wait earlier.
  /// Completion signature: `void(error_code, revocation)`.
  /// Errors: `bad_descriptor`, `not_connected`; the connection's error if it has failed, or fails
  /// or is closed meanwhile, after its keys have ended; `error::device_keeps_memory`: the key
  /// exists, and the memory is still in use. After `async_close` of either side, the peer's goodbye
  /// confirms.
  /// Cancellation: `partial` and `terminal` end only the wait: the peer has been asked, and the
  /// keys end with its confirmation or the grace, the latter only while the context runs. `total`
  /// has no effect.
  ///
  /// Revocations of the same bytes may overlap; the earliest end of a grace applies to all, and
  /// `revoke` ends the keys at once. A grant that has not reached the peer ends at once, too.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_revoke(const registered_buffer& memory, std::chrono::microseconds grace,
                    Token&& token = {}) {
    return detail::begin_async<Token, detail::revocation_result::signature>(
        initiate_revoke{this}, token, std::optional(memory), grace);
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_revoke(std::chrono::microseconds grace, Token&& token = {}) {
    return detail::begin_async<Token, detail::revocation_result::signature>(
        initiate_revoke{this}, token, std::optional<registered_buffer>(), grace);
  }

  /// Revokes every grant and loan of these bytes, or of all memory, to the peer. When the function
  /// returns, the peer's device can no longer access the memory. An operation of the peer that was
  /// under way has ended (siw continues to answer a READ that it has begun to answer); a later
  /// operation ends the connection (`async_revoke` avoids that). On iWARP the bytes of a write that
  /// has completed at the peer may arrive later, which ends the connection, too: a message of the
  /// peer behind its write shows that they have arrived. If a window bind is in progress, its key
  /// is never sent to the peer, and that memory is in use until the device has completed the bind.
  /// Returns the number of grants.
  std::size_t revoke(const registered_buffer& memory) {
    return impl_ ? detail::revoke(*impl_, &memory) : 0;
  }
  std::size_t revoke() { return impl_ ? detail::revoke(*impl_, nullptr) : 0; }

  /// Waits until the connection has failed or was closed, and reports the reason, with which the
  /// connection's other operations end, too. Signature `void(error_code)`. Some reasons:
  /// `timed_out` if the peer did not answer (`connection_options::keep_alive`,
  /// `queue_pair_options::timeout`), `connection_reset` if it disconnected or vanished,
  /// `error::device_removed` or `error::device_fatal` if the device was removed or has failed,
  /// `eof` after a close by both sides, `operation_aborted` after `close` here. Cancellation: all
  /// types.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_disconnect(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(
        initiate_plain<&detail::start_wait, detail::ended_result>{this}, token);
  }

  /// These overloads explain a call with wrong arguments.
  ///@{
  template <detail::no_memory_to_send Memory, class... Rest>
  detail::wrong_call async_send(const Memory&, const Rest&...) {
    return detail::wrong_source<Memory>();
  }
  template <detail::no_memory_to_send Memory, class... Rest>
  detail::wrong_call async_write(const Memory&, const Rest&...) {
    return detail::wrong_source<Memory>();
  }
  template <detail::memory_to_send Memory, class Remote, class... Rest>
  requires(!remote_memory<Remote>) detail::wrong_call
      async_write(const Memory&, const Remote&, const Rest&...) {
    return detail::wrong_remote<Remote>();
  }
  template <detail::no_memory_to_fill Memory, class Second, class... Rest>
  detail::wrong_call async_receive(const Memory&, const Second&, const Rest&...) {
    return detail::wrong_target<Memory>();
  }
  template <detail::no_memory_to_fill Memory, class... Rest>
  detail::wrong_call async_read(const Memory&, const Rest&...) {
    return detail::wrong_target<Memory>();
  }
  template <detail::memory_to_fill Memory, class Remote, class... Rest>
  requires(!remote_memory<Remote>) detail::wrong_call
      async_read(const Memory&, const Remote&, const Rest&...) {
    return detail::wrong_remote<Remote>();
  }
  template <detail::no_region Memory, class... Rest>
  detail::wrong_call async_send_region(const Memory&, const Rest&...) {
    return detail::wrong_region<Memory>();
  }
  template <class... Arguments>
  requires(!detail::opens_with<connection_options, Arguments...>) detail::wrong_call
      open(const Arguments&...) {
    return detail::wrong_arguments_of_open<Arguments...>();
  }
  ///@}

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_connection;

  using initiation = detail::initiation<basic_connection>;

  struct initiate_send : initiation {
    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers,
                    std::optional<std::uint32_t> immediate) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::message_send, detail::sent_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [&](impl_type& i, auto& op) {
            return detail::start(i, op, detail::payload_of<Buffers>(buffers), immediate);
          });
    }
  };

  template <class Result, class Handler>
  void start_remote(Handler&& handler, const detail::remote_work& w) {
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    detail::start_operation<detail::remote_operation, Result, 0>(
        impl_, io_, h, [](auto&) { return true; },
        [&](impl_type& i, auto& op) {
          return detail::start(i, static_cast<detail::remote_operation&>(op), {&w, 1});
        });
  }

  template <ibv_wr_opcode Opcode>
  struct initiate_transfer : initiation {
    template <class Handler, class Buffers, class Remote>
    void operator()(Handler&& handler, const Buffers& buffers, const Remote& remote,
                    std::optional<std::uint32_t> immediate = {}) const {
      const detail::payload_of<Buffers> p(buffers);
      detail::remote_work w = detail::work_on(remote, Opcode);
      w.local = &p;
      w.immediate = immediate;
      this->self->template start_remote<detail::result_of<detail::sent_result, Opcode>>(
          std::forward<Handler>(handler), w);
    }
  };

  template <ibv_wr_opcode Opcode>
  struct initiate_atomic : initiation {
    template <class Handler, class Remote>
    void operator()(Handler&& handler, const Remote& target, std::uint64_t compare_add,
                    std::uint64_t swap) const {
      detail::remote_work w = detail::work_on(target, Opcode);
      w.compare_add = compare_add;
      w.swap = swap;
      this->self->template start_remote<detail::result_of<detail::value_result, Opcode>>(
          std::forward<Handler>(handler), w);
    }
  };

  using microseconds = std::chrono::microseconds;
  using purpose = detail::region_operation::purpose;

  static void fill(detail::region_operation& op, std::uint64_t bytes, access rights,
                   microseconds lease) {
    op.lease.bytes = bytes;
    op.lease.rights = detail::to_rights(rights);
    op.lease.lease = lease;
  }
  static void fill(detail::region_operation& op, const remote_region& region, std::uint64_t tag,
                   microseconds lease = {}) {
    op.region = region;
    op.lease.tag = tag;
    op.lease.lease = lease;
  }
  static void fill(detail::region_operation&) {}

  template <purpose Why, class Result>
  struct initiate_region : initiation {
    template <class Handler, class... Arguments>
    void operator()(Handler&& handler, const Arguments&... arguments) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::region_operation, Result, 0>(
          this->self->impl_, this->self->io_, h,
          [&](detail::region_operation& op) {
            op.why = Why;
            fill(op, arguments...);
            return true;
          },
          [](impl_type& i, auto& op) {
            return detail::start(i, static_cast<detail::region_operation&>(op));
          });
    }
  };

  struct initiate_lend : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const registered_buffer& memory, access rights,
                    microseconds lease, std::uint64_t tag) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::region_operation, detail::no_result, 0>(
          this->self->impl_, this->self->io_, h,
          [&](detail::region_operation& op) {
            op.why = purpose::lend;
            op.lease.rights = detail::to_rights(rights);
            op.lease.lease = lease;
            op.lease.tag = tag;
            return true;
          },
          [&](impl_type& i, auto& op) {
            return detail::start(i, static_cast<detail::region_operation&>(op), memory);
          });
    }
  };

  struct initiate_revoke : initiation {
    template <class Handler> // without memory: all of it
    void operator()(Handler&& handler, const std::optional<registered_buffer>& memory,
                    microseconds grace) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::region_operation, detail::revocation_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [&](impl_type& i, auto& op) {
            return detail::start_revoke(i, op, memory ? &*memory : nullptr, grace);
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
            return detail::start(i, static_cast<detail::message_receive&>(op));
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
              op.request.device_only = op.request.device_only || b.is_device_only();
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
            return detail::start(i, static_cast<detail::message_receive&>(op));
          });
    }
  };

  template <bool (*Start)(impl_type&, detail::operation&), class Result>
  struct initiate_plain : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::operation, Result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [](impl_type& i, auto& op) { return Start(i, op); });
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using connection = basic_connection<>;

/// Revokes, at all connections of the process, the loans of these bytes (`async_send_region`), as
/// `connection::async_revoke` does at one. When the operation completes without an error, no peer
/// can access the bytes by a loan that existed at the start. A loan that begins later is not
/// revoked.
///
/// @param ex  the executor of the handler if the handler has no associated one
/// @param grace  the longest wait for the peers; not positive: none
/// Completion signature: `void(error_code, revocation)`, with the sums over all connections.
/// Errors: `error::device_keeps_memory` if a device refuses to end a key; `no_memory`: a connection
/// may not have been asked; `operation_aborted` after a cancellation. The end of a connection is no
/// error, because it ends the loans.
/// Cancellation: `partial` and `terminal` end only the wait: the peers have been asked, and the
/// keys end. `total` has no effect.
/// Thread safety: may be called from any thread. Each connection does its part in its own execution
/// context, which must run. If one of these contexts is destroyed first, so is the handler.
template <class Executor, class Token = asio::default_completion_token_t<Executor>>
auto async_revoke(const Executor& ex, const registered_buffer& memory,
                  std::chrono::microseconds grace, Token&& token = {}) {
  return detail::begin_async<Token, void(error_code, revocation)>(
      detail::initiate_loan_revocation<Executor>{ex}, token, memory, grace);
}

} // namespace asio_rdma
