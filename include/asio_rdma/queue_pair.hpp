// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/detail/queues/queue_pair_face.hpp>
#include <asio_rdma/detail/queues/results.hpp>
#include <asio_rdma/detail/verbs/wrong_call.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair_options.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <arpa/inet.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace asio_rdma {

template <class Executor>
class basic_shared_receive_queue;

/// The result of a receive.
struct received {
  std::size_t bytes = 0; ///< Of the message, or of an RDMA WRITE with immediate data.
  std::optional<std::uint32_t> immediate;       ///< In host byte order, as given to the sender.
  std::optional<std::uint32_t> invalidated_key; ///< The rkey that the sender invalidated.
  std::uint32_t queue_pair_number = 0;          ///< The local queue pair that received it.
  /// Whether an RDMA WRITE with immediate data completed the receive: the data is at the address
  /// that the WRITE named, and the receive's own buffers are unchanged.
  bool written = false;
};

namespace detail {

struct receive_result {
  using signature = void(error_code, received);
  static std::tuple<received> arguments(const operation& op) {
    received r;
    r.bytes = op.bytes;
    if ((op.flags & IBV_WC_WITH_IMM) != 0)
      r.immediate = op.word;
    else if ((op.flags & IBV_WC_WITH_INV) != 0)
      r.invalidated_key = op.word;
    r.queue_pair_number = op.qp_num;
    r.written = op.value != 0;
    return {r};
  }
};

} // namespace detail

/// Constants of `basic_queue_pair`.
class queue_pair_base {
public:
  /// How a work request is posted (ibv_post_send(3)); combined by `|`.
  enum class flags : unsigned {
    none = 0,
    solicited = 1, ///< The receiver's completion is a solicited one.
    fenced = 2,    ///< Waits until the earlier RDMA READs, FLUSHes and atomics have completed.
    /// The device reports no separate completion: the handler runs when a later operation
    /// completes, or fails. Saves completions for groups of operations. If a later operation cannot
    /// be posted because of an error, the queue pair fails with that error, because otherwise this
    /// operation would never be reported. For the same reason the next operation may count as
    /// posted for a cancellation while it waits.
    unsignaled = 4
  };
  friend constexpr flags operator|(flags a, flags b) noexcept {
    return static_cast<flags>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
  }
  friend constexpr bool operator&(flags a, flags b) noexcept {
    return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0;
  }
};

/// An Asio I/O object for a connected queue pair: a reliable one (RC), or an unreliable one (UC,
/// `queue_pair_options::type`), which has no reads, no atomics and no FLUSH.
///
/// Operations are posted at once while the device's queue has room, and wait when it is full; any
/// number may be started. On siw, an operation that has to wait for reads is not posted before.
/// Sends, writes, reads and atomics are carried out in the order in which
/// they were started, and receives are filled in their order. Yet operations that follow a read or
/// an atomic operation may take effect before it, unless they are `fenced` or start when it has
/// completed. The device may use a buffer until the operation's handler is called.
///
/// *Errors.* `asio::error::bad_descriptor` if closed; `not_connected` before `connect`;
/// `operation_aborted` after `close` or `cancel` here; `connection_reset` if the connection failed
/// or the peer ended it; `invalid_argument` for a queue of depth 0; a status of
/// `completion_category()` for the operation that the device failed; `error::queue_pair_fatal`,
/// `error::device_fatal` or `error::device_removed` if the device reports such an event;
/// `error::too_many_buffers`;
/// `message_size` for more bytes than `device::max_message_bytes`; `operation_not_supported` if the
/// device does not support the operation. If the device refuses to destroy the queue pair,
/// `error::device_keeps_memory` replaces any other result: the operation's memory stays in use
/// until the end of the process, unless the device releases it before (`memory_pool::trim`). When
/// an operation fails on the device, the queue pair has failed (`queue_pair_state::failed`): its
/// verbs object is destroyed, the connection manager, if there is one, notifies the peer, and all
/// other operations end.
///
/// *Cancellation.* An operation that waits to be posted supports `terminal`, `partial` and `total`;
/// for an exception see `flags::unsignaled`.
/// A posted operation cannot be withdrawn: `terminal` moves the queue pair to the failed state, so
/// that all its operations end with `operation_aborted` when the device has released their memory;
/// `partial` and `total` have no effect. A cancelled write, read or atomic operation may have
/// happened.
///
/// *Thread safety.* Distinct objects: safe. Shared objects: unsafe, as for Asio's sockets.
///
/// A queue pair does not survive fork(): see ibv_fork_init(3). Do not use it in the child.
template <class Executor = asio::any_io_executor>
class basic_queue_pair : public queue_pair_base {
  using impl_type = detail::queue_pair_impl;

public:
  using executor_type = Executor;
  using native_handle_type = ibv_qp*;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_queue_pair<Executor1>;
  };

  class batch;

  /// A queue pair that is not open.
  explicit basic_queue_pair(const executor_type& ex) : io_(ex) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_queue_pair(ExecutionContext& context) : io_(context.get_executor()) {}

  /// Opens: see `open`.
  template <class ExecutorOrContext>
  basic_queue_pair(ExecutorOrContext&& ex, const protection_domain& pd,
                   const queue_pair_options& options = {})
      : basic_queue_pair(std::forward<ExecutorOrContext>(ex)) {
    open(pd, options);
  }

  /// The moved-from object is closed.
  basic_queue_pair(basic_queue_pair&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor>
  basic_queue_pair(basic_queue_pair<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_queue_pair& operator=(basic_queue_pair&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  /// As `close`.
  ~basic_queue_pair() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }

  /// Makes the queue pair, ready for receives, in the given completion queue, or in one that the
  /// context's queue pairs share. Options that exceed the device's limits are lowered; `options`
  /// returns the options in force. Errors: `asio::error::already_open`, `bad_descriptor` for a
  /// protection domain that is not open, `invalid_argument` for a type that is not connected or a
  /// completion queue of another execution context, `error::completion_queue_full`,
  /// `error::wrong_device`, or the system's.
  void open(const protection_domain& pd, const queue_pair_options& options, error_code& ec) {
    open(pd, completion_queue(), options, ec);
  }
  void open(const protection_domain& pd, const queue_pair_options& options = {}) {
    open(pd, completion_queue(), options);
  }
  void open(const protection_domain& pd, const completion_queue& queue,
            const queue_pair_options& options, error_code& ec) {
    open_with(pd, options, queue.impl(), nullptr, ec);
  }
  void open(const protection_domain& pd, const completion_queue& queue,
            const queue_pair_options& options = {}) {
    error_code ec;
    open(pd, queue, options, ec);
    detail::throw_if(ec, "queue_pair::open");
  }

  /// Opens the queue pair, like the functions above, with receives from a shared receive queue and
  /// with its completion queue. Additional error: `invalid_argument` if the shared receive queue is
  /// not open or is of another execution context.
  template <class Executor1>
  void open(const protection_domain& pd, basic_shared_receive_queue<Executor1>& receives,
            const queue_pair_options& options, error_code& ec) {
    if (!is_open() && !receives.is_open())
      ec = asio::error::invalid_argument;
    else
      open_with(pd, options, nullptr, receives.impl(), ec);
  }
  template <class Executor1>
  void open(const protection_domain& pd, basic_shared_receive_queue<Executor1>& receives,
            const queue_pair_options& options = {}) {
    error_code ec;
    open(pd, receives, options, ec);
    detail::throw_if(ec, "queue_pair::open");
  }

  /// Adopts a queue pair of a connected type and of the protection domain, with empty queues, made
  /// without a shared receive queue, both of whose completion queues are `queue`. The queue pair is
  /// destroyed at close, because only its destruction releases its memory; after an error the
  /// caller still owns it. If it was created with `sq_sig_all`, do not read into device-only
  /// memory: mlx5 copies the bytes by the CPU. An rdma_cm_id that the queue pair was made with
  /// always remains the caller's, and must not destroy the queue pair (rdma_destroy_qp(3)). If the
  /// device does not report that the queue pair is connected (iWARP), it counts as not connected
  /// before `set_connected`. Errors: `already_open`, `invalid_argument` if the queue pair is not as
  /// described here, `error::completion_queue_full`, or the system's.
  void assign(const protection_domain& pd, const completion_queue& queue, native_handle_type qp,
              error_code& ec) {
    adopt_with(pd, queue.impl(), nullptr, qp, ec);
  }
  void assign(const protection_domain& pd, const completion_queue& queue, native_handle_type qp) {
    error_code ec;
    assign(pd, queue, qp, ec);
    detail::throw_if(ec, "queue_pair::assign");
  }

  /// Adopts a queue pair, like the functions above, that has receives from a shared receive queue
  /// and uses its completion queue.
  template <class Executor1>
  void assign(const protection_domain& pd, basic_shared_receive_queue<Executor1>& receives,
              native_handle_type qp, error_code& ec) {
    adopt_with(pd, nullptr, receives.impl(), qp, ec);
  }
  template <class Executor1>
  void assign(const protection_domain& pd, basic_shared_receive_queue<Executor1>& receives,
              native_handle_type qp) {
    error_code ec;
    assign(pd, receives, qp, ec);
    detail::throw_if(ec, "queue_pair::assign");
  }

  /// Adopts the queue pair of an rdma_cm_id that is connected, like the functions above, and the id
  /// itself. The library reads the id's events from then on: the queue pair fails with
  /// `connection_reset` when the peer disconnects. At close the connection is disconnected, and the
  /// queue pair and the id are destroyed. The id moves to the context's event channel
  /// (rdma_migrate_id(3), which blocks until the id's earlier events are acknowledged). Its members
  /// `context` and `qp` belong to the queue pair. Completion queues that librdmacm has made for the
  /// id are separate, so it was made with completion queues of the caller's (rdma_create_qp(3)).
  ///
  /// After an error the caller still owns the id and its queue pair, with an event channel of the
  /// id's own if it had already moved. If the id cannot move back, for lack of a descriptor or of
  /// kernel memory, its `context` is null, and the caller must destroy it before the execution
  /// context. Errors: those of the functions above; `invalid_argument` for null, or an id without a
  /// queue pair; `not_connected`, as far as the device reports the state.
  ///
  /// A connection or a stream cannot adopt an id: its handshake must be exchanged before the peer
  /// can send, and no receive is posted for it.
  void assign(rdma_cm_id* id, const protection_domain& pd, const completion_queue& queue,
              error_code& ec) {
    adopt_connected_with(id, pd, queue.impl(), nullptr, ec);
  }
  void assign(rdma_cm_id* id, const protection_domain& pd, const completion_queue& queue) {
    error_code ec;
    assign(id, pd, queue, ec);
    detail::throw_if(ec, "queue_pair::assign");
  }
  template <class Executor1>
  void assign(rdma_cm_id* id, const protection_domain& pd,
              basic_shared_receive_queue<Executor1>& receives, error_code& ec) {
    adopt_connected_with(id, pd, nullptr, receives.impl(), ec);
  }
  template <class Executor1>
  void assign(rdma_cm_id* id, const protection_domain& pd,
              basic_shared_receive_queue<Executor1>& receives) {
    error_code ec;
    assign(id, pd, receives, ec);
    detail::throw_if(ec, "queue_pair::assign");
  }

  /// Marks an adopted queue pair as connected, so that operations may be posted. Has no effect if
  /// the queue pair is not open, or is being connected by a connector or acceptor.
  void set_connected() {
    if (impl_)
      detail::set_connected(*impl_);
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  queue_pair_state state() const {
    return impl_ ? detail::state(*impl_) : queue_pair_state::closed;
  }
  native_handle_type native_handle() const noexcept {
    return impl_ ? detail::native_handle(*impl_) : nullptr;
  }
  /// The options in force: those requested, within the device's limits. This function and the next
  /// need an open queue pair.
  const queue_pair_options& options() const noexcept { return detail::options(*impl_); }
  const protection_domain& get_protection_domain() const noexcept {
    return detail::get_protection_domain(*impl_);
  }
  const std::shared_ptr<impl_type>& impl() const noexcept { return impl_; }

  /// The current attributes, from the device (ibv_query_qp(3), `ibv_qp_attr_mask`). Errors:
  /// `bad_descriptor`, the reason of a queue pair that has failed, or the system's.
  ibv_qp_attr query(int mask, error_code& ec) const {
    ibv_qp_attr attr{};
    ec = impl_ ? detail::query(*impl_, attr, mask) : error_code(asio::error::bad_descriptor);
    return attr;
  }
  ibv_qp_attr query(int mask) const {
    error_code ec;
    const ibv_qp_attr result = query(mask, ec);
    detail::throw_if(ec, "ibv_query_qp");
    return result;
  }

  /// The vendor's error code (ibv_poll_cq(3), `vendor_err`) of the first failed work request that
  /// reported one; flushed requests do not count. 0 if there is none.
  std::uint32_t vendor_error() const { return impl_ ? detail::vendor_error(*impl_) : 0; }

  /// Destroys the queue pair. Every operation ends, with its own result if it had completed,
  /// otherwise with `operation_aborted`. When its handler is called, the operation's memory is the
  /// caller's again, unless the handler gets `error::device_keeps_memory`. Data that the peer has
  /// not acknowledged may be lost. No handler is called from within this function. If the queue
  /// pair has failed and another thread is releasing it, this function blocks until that is done.
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }

  /// Ends every operation with `operation_aborted`. If any operation is posted, the queue pair
  /// fails; if all of them waited for room, it remains usable.
  void cancel() {
    if (impl_)
      detail::cancel(*impl_);
  }

  /// The address that the peer needs to connect to this queue pair. Errors: `error::no_gid`,
  /// `bad_descriptor`, or the system's.
  queue_pair_address local_address(error_code& ec) const {
    queue_pair_address result;
    ec = impl_ ? detail::local_address(*impl_, result) : error_code(asio::error::bad_descriptor);
    return result;
  }
  queue_pair_address local_address() const {
    error_code ec;
    const queue_pair_address result = local_address(ec);
    detail::throw_if(ec, "queue_pair::local_address");
    return result;
  }

  /// Connects to the peer's queue pair, which must also connect to this one. Does not wait for the
  /// peer. On iWARP only the connection manager can connect: `operation_not_supported`. Other
  /// errors: `already_connected`, `error::no_gid`, `bad_descriptor`, the reason of a queue pair
  /// that has failed, or the system's. After an error the queue pair is unchanged, but if the
  /// device refuses the last step, it fails.
  void connect(const queue_pair_address& peer, error_code& ec) {
    ec = impl_ ? detail::connect(*impl_, peer) : error_code(asio::error::bad_descriptor);
  }
  void connect(const queue_pair_address& peer) {
    error_code ec;
    connect(peer, ec);
    detail::throw_if(ec, "queue_pair::connect");
  }

  /// Sends a message to one receive of the peer (SEND). Reports its size in bytes.
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, flags how, Token&& token) {
    return initiate<detail::bytes_result>(token, send_request(IBV_WR_SEND, how, 0, buffers));
  }
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_send(const Buffers& buffers,
                                                                      Token&& token = {}) {
    return async_send(buffers, flags::none, std::forward<Token>(token));
  }

  /// SEND with immediate data. Not on iWARP.
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_immediate(const Buffers& buffers, std::uint32_t immediate, flags how,
                            Token&& token) {
    return initiate<detail::bytes_result, checked>(
        token, send_request(IBV_WR_SEND_WITH_IMM, how, htonl(immediate), buffers));
  }
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_send_immediate(
      const Buffers& buffers, std::uint32_t immediate, Token&& token = {}) {
    return async_send_immediate(buffers, immediate, flags::none, std::forward<Token>(token));
  }

  /// SEND that invalidates the memory window (or region) of the peer with that rkey. Errors:
  /// `operation_not_supported` where the device has no memory management extensions.
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_send_invalidate(const Buffers& buffers, std::uint32_t rkey, flags how, Token&& token) {
    return initiate<detail::bytes_result, checked>(
        token, detail::invalidate_request<detail::max_elements<Buffers>()>(
                   IBV_WR_SEND_WITH_INV, verbs_flags(how), rkey, buffers));
  }
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_send_invalidate(
      const Buffers& buffers, std::uint32_t rkey, Token&& token = {}) {
    return async_send_invalidate(buffers, rkey, flags::none, std::forward<Token>(token));
  }

  /// Posts a receive (RECEIVE) for one message, or for one RDMA WRITE with immediate data, which
  /// leaves the buffers unchanged. A message longer than the buffers fails with IBV_WC_LOC_LEN_ERR.
  /// Errors: `operation_not_supported` for a queue pair with a shared receive queue, which starts
  /// the receives itself, and for device-only memory without `device::has_device_only_receives`.
  template <mutable_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive(const Buffers& buffers, Token&& token = {}) {
    return initiate<detail::receive_result>(
        token, detail::receive_request<detail::max_elements<Buffers>()>(buffers));
  }

  /// RDMA WRITE of the buffers into the peer's memory. Reports the bytes written. The operation
  /// completes when the peer's device has acknowledged it. Errors: `error::remote_range`.
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_write(const Buffers& buffers, const remote_buffer& to, flags how, Token&& token) {
    return initiate<detail::bytes_result>(token,
                                          remote_request(IBV_WR_RDMA_WRITE, how, 0, buffers, to));
  }
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_write(const Buffers& buffers,
                                                                       const remote_buffer& to,
                                                                       Token&& token = {}) {
    return async_write(buffers, to, flags::none, std::forward<Token>(token));
  }

  /// RDMA WRITE with immediate data, which completes a receive of the peer. Not on iWARP.
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_write_immediate(const Buffers& buffers, const remote_buffer& to,
                             std::uint32_t immediate, flags how, Token&& token) {
    return initiate<detail::bytes_result, checked>(
        token, remote_request(IBV_WR_RDMA_WRITE_WITH_IMM, how, htonl(immediate), buffers, to));
  }
  template <const_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_write_immediate(
      const Buffers& buffers, const remote_buffer& to, std::uint32_t immediate,
      Token&& token = {}) {
    return async_write_immediate(buffers, to, immediate, flags::none, std::forward<Token>(token));
  }

  /// RDMA READ of the peer's memory into the buffers (at most `device::max_read_buffers`; on iWARP
  /// they must be remotely writable, see `memory_region`). Reports the bytes read. Errors:
  /// `error::remote_range`, `error::too_many_buffers`.
  template <mutable_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_read(const Buffers& buffers, const remote_buffer& from, flags how, Token&& token) {
    return initiate<detail::bytes_result, checked>(
        token, remote_request(IBV_WR_RDMA_READ, how, 0, buffers, from));
  }
  template <mutable_buffer_sequence Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_read(const Buffers& buffers,
                                                                      const remote_buffer& from,
                                                                      Token&& token = {}) {
    return async_read(buffers, from, flags::none, std::forward<Token>(token));
  }

  /// FLUSH of a range of the peer's memory, of at most 2^31 bytes: on completion the bytes of this
  /// queue pair's earlier writes into the range have the placement `what` at the peer. The
  /// completion of a write alone does not say so. The peer must have registered the memory with
  /// `access::flush_visible` for `placement::visible`, and `flush_persistent` for `persistent`; for
  /// both with both. Errors: `message_size`; `invalid_argument` without a placement;
  /// `operation_not_supported` where the device has no FLUSH (`device::has_flush`), for an
  /// unreliable queue pair, and for an adopted one that was made without FLUSH
  /// (ibv_create_qp_ex(3), `send_ops_flags`).
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_flush(const remote_buffer& range, placement what, flags how, Token&& token) {
    return initiate<detail::no_result, checked>(
        token, detail::flush_request(range, what, verbs_flags(how)));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_flush(const remote_buffer& range,
                                                                       placement what,
                                                                       Token&& token = {}) {
    return async_flush(range, what, flags::none, std::forward<Token>(token));
  }

  /// Replaces the eight bytes at `target`, in the peer's byte order, by `desired` if they are
  /// `expected`. Reports the previous value: the exchange happened if it equals `expected`. Atomic
  /// with respect to other atomic operations of the peer's device. The peer's device may report
  /// that it also is with respect to those of the CPU (`ibv_device_attr::atomic_cap`,
  /// IBV_ATOMIC_GLOB); `asio_rdma-trial --check h16` tries that. Errors: `error::misaligned`,
  /// `error::remote_range`, `operation_not_supported` where the device has no atomics.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_compare_and_swap(const remote_buffer& target, std::uint64_t expected,
                              std::uint64_t desired, flags how, Token&& token) {
    return initiate<detail::value_result, checked>(
        token, detail::atomic_request(IBV_WR_ATOMIC_CMP_AND_SWP, verbs_flags(how), target, expected,
                                      desired));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_compare_and_swap(
      const remote_buffer& target, std::uint64_t expected, std::uint64_t desired,
      Token&& token = {}) {
    return async_compare_and_swap(target, expected, desired, flags::none,
                                  std::forward<Token>(token));
  }

  /// Adds `addend` to the eight bytes at `target`, and reports the previous value. Otherwise as
  /// `async_compare_and_swap`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_fetch_add(const remote_buffer& target, std::uint64_t addend, flags how,
                       Token&& token) {
    return initiate<detail::value_result, checked>(
        token,
        detail::atomic_request(IBV_WR_ATOMIC_FETCH_AND_ADD, verbs_flags(how), target, addend, 0));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_fetch_add(
      const remote_buffer& target, std::uint64_t addend, Token&& token = {}) {
    return async_fetch_add(target, addend, flags::none, std::forward<Token>(token));
  }

  /// Binds a memory window to part of a region that was registered with `access::window_bind`. On
  /// completion the peer of this queue pair, and no other, may use `window.rkey()`. The window then
  /// belongs to this queue pair and is released with it. Binding ends an earlier key of the window;
  /// some devices (rxe) require that it was invalidated before, and end the queue pair if it was
  /// not. Errors: IBV_WC_MW_BIND_ERR, `error::remote_range`, `bad_descriptor` for a window or
  /// region that is closed, `invalid_argument` for a window that belongs to another queue pair.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_bind(memory_window& window, const memory_region& region, std::size_t offset,
                  std::size_t bytes, access rights, flags how, Token&& token) {
    detail::bind_request r;
    if (!window.impl_ || !region.is_open())
      r.problem = detail::request_error::not_open;
    else if (offset > region.size() || bytes > region.size() - offset)
      r.problem = detail::request_error::remote_range;
    else
      r = detail::bind_request(window.impl_,
                               {region.native_handle(),
                                reinterpret_cast<std::uintptr_t>(region.data()) + offset, bytes,
                                detail::window_access(rights)},
                               verbs_flags(how));
    return initiate<detail::no_result, detail::bind_operation>(token, r);
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_bind(
      memory_window& window, const memory_region& region, std::size_t offset, std::size_t bytes,
      access rights, Token&& token = {}) {
    return async_bind(window, region, offset, bytes, rights, flags::none,
                      std::forward<Token>(token));
  }

  /// Invalidates the key of a memory window or region on this side. On completion no peer can
  /// access the memory by that key. Errors: the device's error if the key cannot be invalidated.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_invalidate(std::uint32_t rkey, flags how, Token&& token) {
    return initiate<detail::no_result, checked>(
        token, send_request(IBV_WR_LOCAL_INV, how, rkey, const_buffer()));
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, flags>) auto async_invalidate(std::uint32_t rkey,
                                                                            Token&& token = {}) {
    return async_invalidate(rkey, flags::none, std::forward<Token>(token));
  }

  /// Waits until the queue pair fails: `connection_reset` if the peer disconnected or vanished,
  /// `error::peer_access_refused` if this side's device reports that it has refused a request of
  /// the peer's before it flushes posted requests, `error::queue_pair_fatal`, `device_fatal` or
  /// `device_removed`, `operation_aborted` after `close` or `cancel` here. Cancellation: all types.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_disconnect(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(
        detail::initiate_request<detail::operation, detail::no_result, basic_queue_pair>{this},
        token, detail::no_request());
  }

  /// These overloads explain a call with wrong arguments.
  ///@{
  template <detail::no_registered_source Memory, class... Rest>
  detail::wrong_call async_send(const Memory&, const Rest&...) {
    return detail::wrong_registered_source<Memory>();
  }
  template <detail::no_registered_source Memory, class... Rest>
  detail::wrong_call async_send_immediate(const Memory&, const Rest&...) {
    return detail::wrong_registered_source<Memory>();
  }
  template <detail::no_registered_source Memory, class... Rest>
  detail::wrong_call async_send_invalidate(const Memory&, const Rest&...) {
    return detail::wrong_registered_source<Memory>();
  }
  template <detail::no_registered_source Memory, class... Rest>
  detail::wrong_call async_write(const Memory&, const Rest&...) {
    return detail::wrong_registered_source<Memory>();
  }
  template <detail::no_registered_source Memory, class... Rest>
  detail::wrong_call async_write_immediate(const Memory&, const Rest&...) {
    return detail::wrong_registered_source<Memory>();
  }
  template <detail::no_registered_target Memory, class... Rest>
  detail::wrong_call async_receive(const Memory&, const Rest&...) {
    return detail::wrong_registered_target<Memory>();
  }
  template <detail::no_registered_target Memory, class... Rest>
  detail::wrong_call async_read(const Memory&, const Rest&...) {
    return detail::wrong_registered_target<Memory>();
  }
  template <const_buffer_sequence Memory, detail::no_remote_buffer Remote, class... Rest>
  detail::wrong_call async_write(const Memory&, const Remote&, const Rest&...) {
    return detail::wrong_remote<Remote>();
  }
  template <const_buffer_sequence Memory, detail::no_remote_buffer Remote, class... Rest>
  detail::wrong_call async_write_immediate(const Memory&, const Remote&, const Rest&...) {
    return detail::wrong_remote<Remote>();
  }
  template <mutable_buffer_sequence Memory, detail::no_remote_buffer Remote, class... Rest>
  detail::wrong_call async_read(const Memory&, const Remote&, const Rest&...) {
    return detail::wrong_remote<Remote>();
  }
  ///@}

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_queue_pair;

  // The initiation of an operation, which uses `impl_` and `io_`.
  template <class, class, class>
  friend struct detail::initiate_request;

  // SEND and WRITE need no check: there is no device without them.
  using checked = detail::checked_operation;

  template <class Result,
            class Base = std::conditional_t<std::is_same_v<Result, detail::receive_result>,
                                            detail::receive_operation, detail::send_operation>,
            class Request, class Token>
  auto initiate(Token& token, const Request& request) {
    return detail::begin_async<Token, typename Result::signature>(
        detail::initiate_request<Base, Result, basic_queue_pair>{this}, token, request);
  }

  static unsigned verbs_flags(flags how) noexcept {
    return (how & flags::solicited ? unsigned(IBV_SEND_SOLICITED) : 0u) |
           (how & flags::fenced ? unsigned(IBV_SEND_FENCE) : 0u) |
           (how & flags::unsignaled ? 0u : unsigned(IBV_SEND_SIGNALED));
  }

  template <class Buffers>
  static auto send_request(ibv_wr_opcode opcode, flags how, std::uint32_t word,
                           const Buffers& buffers) {
    return detail::send_request<detail::max_elements<Buffers>()>(opcode, verbs_flags(how), word,
                                                                 buffers);
  }

  template <class Buffers>
  static auto remote_request(ibv_wr_opcode opcode, flags how, std::uint32_t word,
                             const Buffers& buffers, const remote_buffer& remote) {
    return detail::remote_request<detail::max_elements<Buffers>()>(opcode, verbs_flags(how), word,
                                                                   buffers, remote);
  }

  using completion_queue_ptr = std::shared_ptr<detail::completion_queue_impl>;
  using shared_receive_queue_ptr = std::shared_ptr<detail::shared_receive_queue_impl>;

  void open_with(const protection_domain& pd, const queue_pair_options& options,
                 const completion_queue_ptr& queue, const shared_receive_queue_ptr& receives,
                 error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::open_queue_pair(io_.context(), pd, options, queue, receives, ec);
    });
  }
  void adopt_with(const protection_domain& pd, const completion_queue_ptr& queue,
                  const shared_receive_queue_ptr& receives, ibv_qp* qp, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::adopt_queue_pair(io_.context(), pd, queue, receives, qp, ec);
    });
  }

  void adopt_connected_with(rdma_cm_id* id, const protection_domain& pd,
                            const completion_queue_ptr& queue,
                            const shared_receive_queue_ptr& receives, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::adopt_connected(io_.context(), io_.get(), id, pd, queue, receives, ec);
    });
  }

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

/// Collects the operations of a queue pair while the batch exists. `commit`, or the destructor,
/// posts them as one chain with one doorbell. The queue pair must not be moved meanwhile. Errors of
/// collected operations are reported to their handlers when they are posted.
template <class Executor>
class basic_queue_pair<Executor>::batch {
public:
  explicit batch(basic_queue_pair& qp) : impl_(qp.impl_) {
    if (impl_)
      detail::hold(*impl_);
  }
  batch(const batch&) = delete;
  batch& operator=(const batch&) = delete;
  ~batch() { commit(); }

  void commit() {
    if (impl_)
      detail::release(*std::exchange(impl_, nullptr));
  }

private:
  std::shared_ptr<detail::queue_pair_impl> impl_;
};

using queue_pair = basic_queue_pair<>;

} // namespace asio_rdma
