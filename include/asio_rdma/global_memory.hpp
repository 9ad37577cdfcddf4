// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/detail/connecting/connecting_face.hpp>
#include <asio_rdma/detail/connection/connection_arguments.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/detail/global/global_face.hpp>
#include <asio_rdma/detail/global/global_operations.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/remote_word.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#pragma GCC visibility push(default)
namespace asio_rdma {

/// Options of a `global_memory`.
struct global_memory_options {
  global_memory_options() {
    lanes.receives = 8;
    lanes.receive_size = 512;
    lanes.max_receive_size = 0;
    lanes.sends = 8;
  }

  /// The number of operations that are outstanding at a time with all nodes together, at least 1; a
  /// batch counts as one. More wait their turn, in order. Operations beyond what the device's
  /// caches hold slow the device down (Ren et al., "Scaling Up Memory Disaggregated Applications
  /// with SMART", ASPLOS 2024). The operations on a node that does not answer keep their places
  /// until the node is known to be dead. The accesses of locks are not counted, but keep their
  /// order with the operations that were started on their node before.
  std::size_t in_flight = 256;

  /// Options of the connection to each node. `lanes.queue_pair.send_depth` bounds the operations
  /// outstanding with a node; more wait their turn. The receives carry only joins, allocations and
  /// wake-ups of locks. `lanes.own_domain` has no effect: the segments belong to the protection
  /// domain of the pool.
  connection_options lanes;

  /// The number of the node's objects that have lanes to share. 0: the object has lanes of its own
  /// and does not share them. Otherwise, once that many objects have lanes to share, further
  /// objects that set this option use those lanes. With very many nodes this saves lanes, but
  /// threads must take turns at them. See `basic_global_memory`.
  std::size_t shared_lanes = 0;

  /// Each sets the member of its name and returns the options:
  /// `global_memory_options().set_in_flight(…)`. Calls can be chained.
  ///@{
  global_memory_options& set_in_flight(std::size_t value) {
    return detail::set(*this, in_flight, value);
  }
  global_memory_options& set_lanes(const connection_options& value) {
    return detail::set(*this, lanes, value);
  }
  global_memory_options& set_shared_lanes(std::size_t value) {
    return detail::set(*this, shared_lanes, value);
  }
  ///@}
};

/// How far a write has got when its handler is called.
enum class visibility {
  completed, ///< The other device has acknowledged it; on iWARP: this device has sent it.
  flushed    ///< It is in the other machine's memory: a later read has returned.
};

/// The word at the root of a segment. The host or a joining node stores a pointer in it, by which
/// other nodes find the segment's contents. Initially null.
using root_word = shared_word<remote_ptr<void>>;
constexpr remote_ptr<root_word> root_of(node_id node, segment_id segment = 0) {
  return {node, segment, 0};
}

/// An Asio I/O object that presents the memory of many machines as one address space: a node that
/// hosts any number of segments, and its lanes to the nodes that it has joined or that have joined
/// it. A `remote_ptr` locates an object, and one call reads or changes the object there by the
/// device; the program there takes no part.
///
/// Each object has one connection to each node, on its own execution context: a *lane*. A program
/// with one context per thread has one object per thread; these objects share the node (see the
/// constructors), and no lane is used by two threads. The number of outstanding operations is
/// bounded, with a node by the depth of its queue pair and in total by
/// `global_memory_options::in_flight`; more wait their turn, in order.
///
/// If that would be too many lanes, objects may share lanes
/// (`global_memory_options::shared_lanes`): a node that one of these objects joins can be reached
/// by all of them. Operations are completed by the context of the object that made the lanes, with
/// that object's options, so that context must run. The handlers run on their own executors, whose
/// contexts must not be destroyed before. The lanes end when the last object that uses them is
/// closed; closing an object earlier ends nothing. If the context of the object that made the lanes
/// is destroyed, the lanes end too, and pending handlers are destroyed.
///
/// *Order.* Operations with one node are carried out in the order in which they were started. Yet a
/// read or an atomic operation may observe the effect of a write that was started later
/// (ibv_post_send(3), IBV_SEND_FENCE), and if the node's device carries out atomic operations by
/// PCIe (IBV_ATOMIC_GLOB), other operations that were started later. To exclude that, start them
/// when the earlier operation has completed.
/// Reads of more than 8 bytes, or not aligned to 8, may see parts of a concurrent write: see
/// `single_writer`.
///
/// *Errors.* `error::node_unknown` for a node that has not been joined, and for null; before
/// anything is posted, `error::remote_range` for an object that is not within a segment and
/// `error::misaligned` for an object that is not aligned as its type requires (to 8 bytes, if
/// atomic); `operation_not_supported` for atomic operations if this node's device or the other
/// node's has none; `error::pool_limit` and `no_memory` if the pool has no memory for a value, also
/// for one that a lock reads; `bad_descriptor` if this object is closed. If a node leaves or dies,
/// the operations on that node, and later ones, fail with the error of its connection
/// (`connection_reset`, `errc::timed_out`...; see `connection`); nothing else is affected.
///
/// *Cancellation.* All types; `total` alone ends only what has not been posted, and reads. An
/// operation that has not been posted does not happen; a posted one may have happened. Its place
/// among the outstanding operations is free at once. The device cannot be made to release a buffer
/// that is passed as a view: a posted read or write of a view continues until the device has
/// released the buffer. Only `terminal` ends it, and ends the connection to the node (see
/// `connection::async_write`).
///
/// *Trust.* Every node may read and write all of every segment that it has joined; `listen` decides
/// which nodes join, by `accept_options::admit`. The messages of
/// a node are checked; the data that it writes is not. A peer that does not identify itself within
/// `connection_options::keep_alive` is disconnected. A segment's key is valid on every queue pair
/// of the pool's protection domain.
///
/// *Thread safety.* Distinct objects: safe. Shared objects: unsafe, as for Asio's sockets. The
/// object must not be destroyed or moved while a composed operation on it (`async_exchange`) is
/// pending.
template <class Executor = asio::any_io_executor>
class basic_global_memory {
  using impl_type = detail::global_memory_impl;

public:
  using executor_type = Executor;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_global_memory<Executor1>;
  };

  class batch;

  /// Creates a node. No other node may have its id, now or later: pointers into a node that has
  /// left would lead to the new owner of the id. The node's connections use memory of the pool.
  /// Errors (thrown): `invalid_argument` for the id or if `in_flight` is 0, `bad_descriptor` for a
  /// pool that is not open or of a protection domain that is not open, or the system's.
  template <class ExecutorOrContext>
  basic_global_memory(ExecutorOrContext&& ex, const memory_pool& pool, node_id node,
                      const global_memory_options& options = {})
      : io_(executor_of(ex)) {
    if (node == 0 || node > max_node)
      detail::throw_error(asio::error::invalid_argument, "global_memory");
    open(detail::make_node(pool, node), options);
  }
  /// Makes another view of the node of `same_node`, on another executor. The object has lanes of
  /// its own, for which it must join other nodes itself, unless the lanes are shared.
  template <class ExecutorOrContext, class Executor1>
  basic_global_memory(ExecutorOrContext&& ex, const basic_global_memory<Executor1>& same_node,
                      const global_memory_options& options = {})
      : io_(executor_of(ex)) {
    open(same_node.node_, options);
  }

  /// The moved-from object is closed.
  basic_global_memory(basic_global_memory&& other) noexcept
      : io_(other.io_), node_(other.node_), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_global_memory& operator=(basic_global_memory&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      node_ = other.node_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  /// As `close`.
  ~basic_global_memory() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }
  bool is_open() const noexcept { return impl_ != nullptr; }
  /// The id of this node.
  node_id id() const noexcept { return detail::id_of(*node_); }

  /// Leaves the global memory: ends the connections to all nodes, and ends every operation with
  /// `operation_aborted`. While other objects share the lanes, nothing ends. The segments are
  /// released with the last object of the node.
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }

  /// Hosts a segment of `bytes`, zeroed, of huge pages where the system has them, which every node
  /// can access by the device. Its first 64 bytes are reserved for the root. Call it before the
  /// node listens or joins. Errors: `invalid_argument` for the size, `already_started`,
  /// `no_buffer_space` for more than 256 segments, or those of `memory_pool::allocate`.
  segment_id host(std::uint64_t bytes, error_code& ec) {
    segment_id result = 0;
    ec = detail::host(*node_, bytes, result);
    return result;
  }
  segment_id host(std::uint64_t bytes) {
    error_code ec;
    const segment_id result = host(bytes, ec);
    detail::throw_if(ec, "global_memory::host");
    return result;
  }

  /// Listens for joining nodes at the endpoint: see `acceptor::open`. The context then has work
  /// until `close`. If `accept_options::admit` is set, it decides on each node by the private data
  /// of its join, before a queue pair is made for the node, and long before the node gets a key of
  /// a segment; `async_join` there ends with `error::rejected`. The function is called by this
  /// object's executor; if lanes are shared, by that of the object that made them. Errors also:
  /// `invalid_argument` for private data of `options`.
  void listen(const asio::ip::tcp::endpoint& endpoint, const accept_options& options,
              error_code& ec) {
    ec =
        impl_ ? detail::listen(*impl_, endpoint, options) : error_code(asio::error::bad_descriptor);
  }
  void listen(const asio::ip::tcp::endpoint& endpoint, const accept_options& options = {}) {
    error_code ec;
    listen(endpoint, options, ec);
    detail::throw_if(ec, "global_memory::listen", endpoint);
  }
  void listen(const asio::ip::tcp::endpoint& endpoint, error_code& ec) {
    listen(endpoint, accept_options(), ec);
  }
  asio::ip::tcp::endpoint local_endpoint(error_code& ec) const {
    if (impl_)
      return detail::local_endpoint(*impl_, ec);
    ec = asio::error::bad_descriptor;
    return {};
  }
  asio::ip::tcp::endpoint local_endpoint() const {
    error_code ec;
    asio::ip::tcp::endpoint result = local_endpoint(ec);
    detail::throw_if(ec, "global_memory::local_endpoint");
    return result;
  }

  /// Joins the node that listens at the endpoint, and reports its id. On completion each node can
  /// access the other's segments. Signature `void(error_code, node_id)`. A node may join itself, to
  /// access its own segments by the device. If this node hosts segments, the context has work until
  /// `close`, because the other node may request memory of them. Errors: `error::node_in_use` if
  /// another node that either side knows has the same id, those of `connector::async_connect`,
  /// `error::protocol_violation`. The private data of `options` are for the other node's
  /// `accept_options::admit` (see `listen`).
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_join(const asio::ip::tcp::endpoint& endpoint, const connect_options& options,
                  Token&& token = {}) {
    return detail::begin_async<Token, detail::node_result::signature>(initiate_join{this}, token,
                                                                      endpoint, options);
  }
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, connect_options>) //
      auto async_join(const asio::ip::tcp::endpoint& endpoint, Token&& token = {}) {
    return async_join(endpoint, connect_options(), std::forward<Token>(token));
  }

  /// Whether this object has, or had, a lane to the node. The node may have died since.
  bool knows(node_id node) const noexcept { return impl_ && detail::knows(*impl_, node); }
  /// How the atomic operations of the node's device relate to its CPU (ibv_query_device(3),
  /// `atomic_cap`), as the node reported when it was joined; IBV_ATOMIC_NONE for an unknown node.
  ibv_atomic_cap atomics(node_id node) const noexcept {
    return impl_ ? detail::atomics_of(*impl_, node) : IBV_ATOMIC_NONE;
  }

  /// The local address of the object, if it is in a segment of this node and aligned; otherwise
  /// null. Access data that a device may change concurrently only through the words of
  /// remote_word.hpp.
  template <remote_object T>
  T* local(remote_ptr<T> p) const noexcept {
    return static_cast<T*>(
        detail::local(*node_, detail::remote_word(p.bits()), sizeof(T), alignof(T)));
  }

  /// Allocates zeroed memory for `count` objects in a segment, aligned for them. Memory of this
  /// node is allocated at once; memory of another node is requested by a message, which is answered
  /// while the program there runs its context. The memory belongs to the segment, not to the node
  /// that requested it, until it is freed, and takes up to a quarter more than its size. Signature
  /// `void(error_code, remote_ptr<T>)`. Errors: `no_memory` if a segment of this
  /// node has no room; `error::peer_out_of_memory`, which is that condition too, for a segment of
  /// another node; `invalid_argument` for no objects, a segment that does not exist, or an
  /// alignment over 4096. Memory that arrives for a cancelled request is freed.
  template <remote_object T, class Token = asio::default_completion_token_t<executor_type>>
  auto async_allocate(node_id node, segment_id segment, std::uint64_t count, Token&& token = {}) {
    detail::global_message m;
    m.what = detail::global_message::kind::allocate;
    m.segment = segment;
    m.value = count <= max_segment_bytes / sizeof(T) ? count * sizeof(T) : max_segment_bytes + 1;
    m.alignment = alignof(T);
    return detail::begin_async<Token, typename detail::pointer_result<T>::signature>(
        initiate_request<detail::pointer_result<T>>{this}, token, node, m);
  }
  /// Allocates one object.
  template <remote_object T, class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::integral<std::decay_t<Token>>) //
      auto async_allocate(node_id node, segment_id segment, Token&& token = {}) {
    return async_allocate<T>(node, segment, std::uint64_t(1), std::forward<Token>(token));
  }
  /// Frees the memory that begins at `p`. Signature `void(error_code)`. Errors: `invalid_argument`
  /// if no allocation begins there. Cancellation: `partial` and `terminal`; the memory is freed
  /// nevertheless.
  template <class T, class Token = asio::default_completion_token_t<executor_type>>
  auto async_free(remote_ptr<T> p, Token&& token = {}) {
    detail::global_message m;
    m.what = detail::global_message::kind::free;
    m.segment = p.segment();
    m.value = p.offset();
    return detail::begin_async<Token, void(error_code)>(initiate_request<detail::no_result>{this},
                                                        token, p.node(), m);
  }

  /// Reads the object. Signature `void(error_code, remote_value_t<T>)`.
  template <remote_readable T, class Token = asio::default_completion_token_t<executor_type>>
  auto async_read(remote_ptr<T> p, Token&& token = {}) {
    return detail::begin_async<Token, typename detail::value_read<remote_value_t<T>>::signature>(
        initiate_read<remote_value_t<T>>{this}, token, place<T>(p));
  }
  /// Reads as many bytes as the buffers have, from `p` on; registered buffers are not copied. See
  /// `connection::async_read`. Signature `void(error_code, std::size_t)`.
  template <class T, class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  requires(remote_readable<T> || std::is_void_v<T>) &&
      (asio::is_mutable_buffer_sequence<Buffers>::value || mutable_buffer_sequence<Buffers>) //
      auto async_read(remote_ptr<T> p, const Buffers& buffers, Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_buffers<IBV_WR_RDMA_READ>{this}, token, detail::remote_word(p.bits()), buffers,
        visibility::completed);
  }

  /// Writes the object. `until` determines when the operation completes. Signature
  /// `void(error_code)`.
  template <remote_writable T, class Token = asio::default_completion_token_t<executor_type>>
  auto async_write(remote_ptr<T> p, const std::type_identity_t<remote_value_t<T>>& value,
                   visibility until, Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(initiate_write{this}, token, place<T>(p),
                                                        value, until);
  }
  template <remote_writable T, class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, visibility>) //
      auto async_write(remote_ptr<T> p, const std::type_identity_t<remote_value_t<T>>& value,
                       Token&& token = {}) {
    return async_write(p, value, visibility::completed, std::forward<Token>(token));
  }
  /// Writes the bytes of the buffers from `p` on; registered buffers are not copied. See
  /// `connection::async_write`. Signature `void(error_code, std::size_t)`.
  template <class T, class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  requires(remote_writable<T> || std::same_as<T, void>) &&
      (asio::is_const_buffer_sequence<Buffers>::value || const_buffer_sequence<Buffers>) //
      auto async_write(remote_ptr<T> p, const Buffers& buffers, visibility until,
                       Token&& token = {}) {
    return detail::begin_async<Token, detail::sent_result::signature>(
        initiate_buffers<IBV_WR_RDMA_WRITE>{this}, token, detail::remote_word(p.bits()), buffers,
        until);
  }
  template <class T, class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  requires(remote_writable<T> || std::same_as<T, void>) &&
      (asio::is_const_buffer_sequence<Buffers>::value ||
       const_buffer_sequence<Buffers>)&&(!std::same_as<std::decay_t<Token>, visibility>) //
      auto async_write(remote_ptr<T> p, const Buffers& buffers, Token&& token = {}) {
    return async_write(p, buffers, visibility::completed, std::forward<Token>(token));
  }

  /// Atomically replaces the word by `desired` if it equals `expected`. Reports whether it was
  /// replaced, and its previous value. Signature `void(error_code,
  /// exchange_result<remote_value_t<T>>)`.
  template <remote_atomic T, class Token = asio::default_completion_token_t<executor_type>>
  auto async_compare_exchange(remote_ptr<T> p, remote_value_t<T> expected,
                              remote_value_t<T> desired, Token&& token = {}) {
    return detail::begin_async<Token, typename detail::exchanged<remote_value_t<T>>::signature>(
        initiate_atomic<detail::exchange_operation, detail::exchanged<remote_value_t<T>>>{this},
        token, IBV_WR_ATOMIC_CMP_AND_SWP, place<T>(p, true), detail::word_bits(expected),
        detail::word_bits(desired));
  }
  /// Atomically adds `addend`, modulo 2^64, and reports the previous value. Signature
  /// `void(error_code, remote_value_t<T>)`.
  template <remote_atomic T, class Token = asio::default_completion_token_t<executor_type>>
  requires std::integral<remote_value_t<T>> //
  auto async_fetch_add(remote_ptr<T> p, remote_value_t<T> addend, Token&& token = {}) {
    return detail::begin_async<Token, typename detail::word_found<remote_value_t<T>>::signature>(
        initiate_atomic<detail::exchange_operation, detail::word_found<remote_value_t<T>>>{this},
        token, IBV_WR_ATOMIC_FETCH_AND_ADD, place<T>(p, true), detail::word_bits(addend),
        std::uint64_t(0));
  }
  /// Atomically replaces the word by `desired` and reports the previous value. Devices have no such
  /// operation: it is a compare-and-exchange that is repeated with the last value seen until it
  /// succeeds, after a random pause that doubles up to a millisecond. Signature `void(error_code,
  /// remote_value_t<T>)`.
  template <remote_atomic T, class Token = asio::default_completion_token_t<executor_type>>
  auto async_exchange(remote_ptr<T> p, remote_value_t<T> desired, Token&& token = {}) {
    using attempt = detail::exchange_attempt<basic_global_memory, T>;
    return detail::begin_async<Token, void(error_code, remote_value_t<T>)>(
        detail::initiate_retrying<basic_global_memory>{this}, token, attempt(*this, p, desired));
  }

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_global_memory;
  // A lock starts its operations on the memory's `impl_`.
  template <class>
  friend class basic_alock;

  using aim = detail::global_aim;
  template <class T>
  static aim place(remote_ptr<T> p, bool atomic = false) noexcept {
    return {detail::remote_word(p.bits()), sizeof(T), alignof(T), atomic};
  }

  template <class ExecutorOrContext>
  static executor_type executor_of(ExecutorOrContext& ex) {
    if constexpr (std::convertible_to<ExecutorOrContext&, asio::execution_context&>)
      return ex.get_executor();
    else
      return ex;
  }

  void open(std::shared_ptr<detail::global_node> node, const global_memory_options& options) {
    node_ = std::move(node);
    error_code ec;
    impl_ = detail::open_memory(asio::any_io_executor(io_.get()), node_, options, ec);
    detail::throw_if(ec, "global_memory");
    io_ = {io_.get(), detail::context_of(*impl_)};
  }

  /// Starts an operation on a lane, by `start(link, op)`, or completes it with `ec` if `lane` is
  /// null. The operation may have to wait for its turn, so `start` has copies of everything that it
  /// needs. `prepare(op)` is called immediately.
  template <class Base, class Result, class Handler, class Prepare, class Start>
  void start_on(const std::shared_ptr<detail::lane_link>& lane, const error_code& ec,
                Handler&& handler, Prepare&& prepare, Start&& start) {
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    if (lane == nullptr) [[unlikely]] {
      using op_type = detail::handler_op<Base, Result, std::decay_t<Handler>, Executor, 0>;
      typename op_type::owner op(h, io_);
      op->ec = ec;
      detail::complete_unstarted<Result>(op, io_);
      return;
    }
    detail::start_operation<Base, Result, 0>(
        lane, io_, h,
        [&](auto& op) {
          prepare(static_cast<Base&>(op));
          return true;
        },
        [&](detail::lane_link& link, auto& op) {
          return link.start(static_cast<Base&>(op), std::forward<Start>(start));
        });
  }

  /// Starts an operation, like the function above, on the lane of the node of `where`:
  /// `start(link, op, target)`.
  template <class Base, class Result, class Handler, class Start>
  void start_at(Handler&& handler, const aim& where, Start&& start) {
    error_code ec = asio::error::bad_descriptor;
    remote_buffer target;
    const std::shared_ptr<detail::lane_link> lane =
        impl_ ? detail::find(*impl_, where, target, ec) : nullptr;
    start_on<Base, Result>(
        lane, ec, std::forward<Handler>(handler), [](Base&) {},
        [start = std::forward<Start>(start), target](detail::connection_impl& link, Base& op) {
          return start(link, op, target);
        });
  }

  using initiation = detail::initiation<basic_global_memory>;

  template <class Value>
  struct initiate_read : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const aim& where) const {
      using operation = detail::value_read_operation<Value>;
      this->self->template start_at<operation, detail::value_read<Value>>(
          std::forward<Handler>(handler), where,
          [](detail::connection_impl& link, operation& op, const remote_buffer& target) {
            const detail::payload_of<asio::mutable_buffer> to(
                asio::buffer(op.bytes_read.data(), op.bytes_read.size()));
            detail::remote_work w = detail::work_on(target, IBV_WR_RDMA_READ);
            w.local = &to;
            return detail::start(link, op, {&w, 1});
          });
    }
  };

  struct initiate_write : initiation {
    template <class Handler, class Value>
    void operator()(Handler&& handler, const aim& where, const Value& value,
                    visibility until) const {
      this->self->template start_at<detail::write_operation, detail::no_result>(
          std::forward<Handler>(handler), where,
          [value, until](detail::connection_impl& link, detail::write_operation& op,
                         const remote_buffer& target) {
            const detail::payload_of<asio::const_buffer> from(asio::buffer(&value, sizeof value));
            return detail::start_write(link, op, target, from, until == visibility::flushed);
          });
    }
  };

  template <ibv_wr_opcode Opcode>
  struct initiate_buffers : initiation {
    template <class Handler, class Buffers>
    void operator()(Handler&& handler, detail::remote_word at, const Buffers& buffers,
                    visibility until) const {
      const detail::payload_of<Buffers> all(buffers);
      const std::uint64_t bytes = all.owner != nullptr ? all.owner->size() : all.bytes;
      this->self->template start_at<detail::write_operation,
                                    detail::result_of<detail::sent_result, Opcode>>(
          std::forward<Handler>(handler), {at, bytes},
          [buffers, until](detail::connection_impl& link, detail::write_operation& op,
                           const remote_buffer& target) {
            const detail::payload_of<Buffers> p(buffers);
            if (Opcode == IBV_WR_RDMA_WRITE)
              return detail::start_write(link, op, target, p, until == visibility::flushed);
            detail::remote_work w = detail::work_on(target, Opcode);
            w.local = &p;
            return detail::start(link, op, {&w, 1});
          });
    }
  };

  template <class Operation, class Result>
  struct initiate_atomic : initiation {
    template <class Handler>
    void operator()(Handler&& handler, ibv_wr_opcode opcode, const aim& where,
                    std::uint64_t compare_add, std::uint64_t swap) const {
      this->self->template start_at<Operation, Result>(
          std::forward<Handler>(handler), where,
          [=](detail::connection_impl& link, Operation& op, const remote_buffer& target) {
            detail::remote_work w = detail::work_on(target, opcode);
            w.compare_add = op.expected = compare_add;
            w.swap = swap;
            return detail::start(link, op, {&w, 1});
          });
    }
  };

  struct initiate_batch : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const std::shared_ptr<detail::batch_state>& state) const {
      const auto& memory = this->self->impl_;
      error_code ec = !memory         ? error_code(asio::error::bad_descriptor)
                      : state->posted ? error_code(asio::error::already_started)
                                      : state->problem;
      const std::shared_ptr<detail::lane_link> lane = ec ? nullptr : state->aim(*memory, ec);
      this->self->template start_on<detail::batch_operation, detail::no_result>(
          lane, ec, std::forward<Handler>(handler),
          [&state](detail::batch_operation& op) { op.keep(state); },
          [](detail::connection_impl& link, detail::batch_operation& op) {
            return detail::start(link, op, op.chain());
          });
    }
  };

  struct initiate_join : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const asio::ip::tcp::endpoint& endpoint,
                    const connect_options& options) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::global_request, detail::node_result, 0>(
          this->self->impl_, this->self->io_, h,
          [&](auto& op) {
            op.endpoint = endpoint;
            op.how = options;
            return true;
          },
          [](impl_type& i, auto& op) { return detail::start(i, op, 0); });
    }
  };

  template <class Result>
  struct initiate_request : initiation {
    template <class Handler>
    void operator()(Handler&& handler, node_id node, const detail::global_message& m) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::global_request, Result, 0>(
          this->self->impl_, this->self->io_, h,
          [&](auto& op) {
            op.message = m;
            op.message.node = node;
            return true;
          },
          [&](impl_type& i, auto& op) { return detail::start(i, op, node); });
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<detail::global_node> node_;
  std::shared_ptr<impl_type> impl_;
};

/// A batch: operations on one node that are posted by one doorbell, reported by one completion, and
/// carried out in order (see `basic_global_memory`) in one round trip. If the other node refuses
/// one of them, the operations after it have not been carried out; after any other error each of
/// them may have been.
///
///     global_memory::batch b(memory, node);
///     b.write(victim, 1);
///     const auto tail = b.read(other_tail);
///     co_await b.async_post(asio::deferred);
///     use(b[tail]);
///
/// A batch may be posted again, unchanged or after `clear`. If an operation is added to a batch
/// while it is posted, a new batch begins that fails with `already_started`.
template <class Executor>
class basic_global_memory<Executor>::batch {
public:
  /// Identifies the result of an operation of a batch.
  template <class T>
  class result {
    friend batch; // only a batch makes results, and reads their places
    explicit result(std::size_t at) : at_(at) {}
    std::size_t at_;
  };

  /// `memory` must outlive this object.
  batch(basic_global_memory& memory, node_id node) : memory_(&memory), node_(node) {}

  template <remote_writable T>
  void write(remote_ptr<T> p, const std::type_identity_t<remote_value_t<T>>& value) {
    const std::size_t at = add(IBV_WR_RDMA_WRITE, place<T>(p));
    std::memcpy(&state_->words[at], &value, sizeof value);
  }
  template <remote_readable T>
  result<remote_value_t<T>> read(remote_ptr<T> p) {
    return result<remote_value_t<T>>(add(IBV_WR_RDMA_READ, place<T>(p)));
  }
  /// The result is the previous value: the exchange has happened if it equals `expected`.
  template <remote_atomic T>
  result<remote_value_t<T>> compare_exchange(remote_ptr<T> p, remote_value_t<T> expected,
                                             remote_value_t<T> desired) {
    return result<remote_value_t<T>>(add(IBV_WR_ATOMIC_CMP_AND_SWP, place<T>(p, true),
                                         detail::word_bits(expected), detail::word_bits(desired)));
  }
  /// The result is the previous value.
  template <remote_atomic T>
  requires std::integral<remote_value_t<T>> result<remote_value_t<T>>
  fetch_add(remote_ptr<T> p, remote_value_t<T> addend) {
    return result<remote_value_t<T>>(
        add(IBV_WR_ATOMIC_FETCH_AND_ADD, place<T>(p, true), detail::word_bits(addend)));
  }

  std::size_t size() const noexcept { return state_->chain.size(); }
  void clear() {
    if (state_->posted)
      state_ = std::make_shared<detail::batch_state>();
    state_->aims.clear();
    state_->chain.clear();
    state_->words.clear();
    state_->problem = {};
  }

  /// Posts the batch. Signature `void(error_code)`. Errors: those of `basic_global_memory`; if an
  /// error is detected before posting, nothing is posted; `invalid_argument` for a pointer to
  /// another node. Cancellation: all types; the operations may have happened. `total` alone ends
  /// only what has not been posted.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_post(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(initiate_batch{memory_}, token, state_);
  }

  /// The result of an operation, after the batch has succeeded. Zero if `r` is not of this batch.
  template <class T>
  T operator[](result<T> r) const noexcept {
    std::array<std::byte, sizeof(T)> bytes{};
    if (r.at_ + (sizeof(T) + 7) / 8 <= state_->words.size())
      std::memcpy(bytes.data(), &state_->words[r.at_], sizeof(T));
    return std::bit_cast<T>(bytes);
  }

private:
  std::size_t add(ibv_wr_opcode opcode, const aim& where, std::uint64_t compare_add = 0,
                  std::uint64_t swap = 0) {
    if (state_->posted) {
      auto next = std::make_shared<detail::batch_state>();
      next->problem = asio::error::already_started;
      state_ = std::move(next);
    }
    detail::batch_state& s = *state_;
    const std::size_t at = s.words.size(), words = (where.bytes + 7) / 8;
    s.reserve(words); // from here on nothing throws
    if (where.at.node() != node_ && !s.problem)
      s.problem = asio::error::invalid_argument;
    s.words.resize(at + words);
    s.aims.push_back(where);
    s.chain.push_back(detail::work_on(remote_buffer(), opcode));
    s.chain.back().compare_add = compare_add;
    s.chain.back().swap = swap;
    return at;
  }

  basic_global_memory* memory_;
  node_id node_;
  std::shared_ptr<detail::batch_state> state_ = std::make_shared<detail::batch_state>();
};

using global_memory = basic_global_memory<>;

} // namespace asio_rdma
#pragma GCC visibility pop
