// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/link/open_calls.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/detail/queues/results.hpp>
#include <asio_rdma/detail/streams/stream_buffers.hpp>
#include <asio_rdma/detail/streams/stream_face.hpp>
#include <asio_rdma/detail/streams/stream_teardown.hpp>
#include <asio_rdma/detail/verbs/wrong_call.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/shared_receives.hpp>
#include <asio_rdma/stream_options.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace asio_rdma {

/// An Asio I/O object that carries a stream of bytes between two programs, with the interface and
/// the behaviour of `boost::asio::ip::tcp::socket`: Asio's AsyncReadStream, AsyncWriteStream,
/// SyncReadStream and SyncWriteStream. It is connected by `acceptor` and `connector`.
///
/// *Writing.* A write copies its bytes to the send buffer (`stream_options::sends`), as many as
/// fit, and then completes. An asynchronous write of registered memory takes all of it, of a
/// sequence of run-time length up to 16 parts. Registered memory is `registered_buffer`,
/// `const_buffer`, and other memory of the stream's pool in up to three parts of more than 240
/// bytes in total. Registered memory of 128 KiB and more in one piece is not copied: the peer reads
/// it by RDMA READ. `asio::async_write` passes at most 64 KiB at a time, so use `async_write_some`.
/// On iWARP a READ would register memory on both sides, so the bytes, also of several pieces, are
/// sent from their place. If the peer's receives are full, the rest of the write is copied, unless
/// the send buffer has no room for all of it. So it waits for the peer's reader only if
/// `asio::async_write` of plain memory would, or if many long writes are made at once; writes and
/// waits for room behind it then wait, too. Nor is registered memory of 4 to 128 KiB copied
/// if no write waits, the peer's receives take all of it now, and the program has not waited for
/// the end of a write that was sent from its place since the peer's last bytes. A write that is not
/// copied completes when the peer's device has the bytes; on iWARP, when this side's TCP has them.
/// Unless `tcp::no_delay` is set, a copied write is sent at once, and those that follow it are sent
/// together, when the handlers that are ready have run; fewer than 16 KiB also wait until the frame
/// before them has been sent.
///
/// *Reading.* Received bytes stay in the receives, or in memory of the pool, until they are read.
/// If the peer is ahead of its reader by `stream_options::receives` and the send buffer, its writes
/// wait. The receives grow to the size of the peer's writes, up to
/// `stream_options::max_receive_size`. A pending asynchronous read of at least 32 KiB of registered
/// memory in one piece receives bytes that the peer offers for RDMA READ directly into its memory.
/// The device must have the right to write that memory (`access::local_write`).
///
/// *Device-only memory* (`const_buffer`) is written by `async_write_some`, always in place, and the
/// write may wait for the peer's reader. A write of several buffers takes up to three of less than
/// 128 KiB in total, on iWARP of any size; of others it takes the first alone. Reads into such
/// memory, blocking writes, and writes by a device that sends from one scatter/gather element would
/// copy bytes, and fail with `operation_not_supported`. Do not pass such memory to
/// `asio::async_write` or `async_read` of Asio, which pass on plain buffers: the CPU would access
/// the memory.
///
/// *Allocations.* After warming up, a read or a write allocates nothing from the heap. An exception
/// is memory that the peer reads by RDMA READ: it is registered, and libibverbs allocates for that.
///
/// *Errors.* As a TCP socket's on Linux: `bad_descriptor` if not open; before it is connected
/// `not_connected` for reads and `broken_pipe` for writes; `eof` for reads after the peer's
/// shutdown or close, `broken_pipe` for writes after a shutdown here or a close by the peer;
/// when the connection has failed `connection_reset`, `errc::timed_out` for a silent peer,
/// `error::peer_access_refused` if the device has refused a request of the peer's, or the device's
/// error, of which every object has `error::device_removed`, `error::device_fatal` and
/// `error::queue_pair_fatal`; `error::shared_receives_closed`; `operation_aborted` after `cancel`
/// and `close`; `would_block`. Also those of `memory_pool::allocate`,
/// `error::buffer_in_use`, `invalid_argument` for a `registered_buffer` of another protection
/// domain than the pool's, `error::protocol_violation` for a peer that breaks the protocol, and
/// `error::device_keeps_memory` as for `basic_connection`.
///
/// *Differences from TCP.* The kernel owns a TCP connection; the program owns a stream.
/// - Written bytes, and the goodbye of a close, are sent by the running context or by the stream's
///   blocking functions: `run()` has work until the peer has everything. A context that is
///   destroyed before sends the rest first, so its destructor blocks, and the peer reads `eof`
///   after the last byte. Both wait as long as the peer takes at least one byte in every
///   `stream_options::linger`, for about 16 of them and one more for each 64 KiB. Unsent bytes are
///   lost if the process terminates without destroying the context (`std::_Exit`, a signal): the
///   peer gets `connection_reset`. The contexts of the acceptor and the connector may be destroyed
///   before the stream.
/// - After `io_context::stop`, the destructor of the context waits for no peer. It gives the device
///   up to 100 ms for the frames that the peer's receives take now. If written bytes are left, they
///   are lost, and the peer gets `connection_reset`. A context is also stopped when `run()` has
///   returned for lack of work: bytes that are written after that are still sent as above. So are
///   those of streams with a completion queue in mode `manual`. The destructor of an
///   `asio::thread_pool` calls `stop`: call `join` before.
/// - An error of the connection persists and is reported again. The endpoints remain available
///   after it.
/// - A write fails at once after the peer's close, not from the second write on, because a frame
///   announces the close.
/// - A shutdown after the peer's close succeeds, because nothing is left to do.
/// - A peer that closes with unread bytes ends the stream like any other close: it sends no reset.
///   Neither does a peer that has shut down both ways: it discards the bytes that still arrive, and
///   answers them by a notice, after which pending and later writes fail with `broken_pipe`.
/// - When the connection fails, the bytes that had arrived can still be read; of bytes that the
///   peer offered, those that had been read by RDMA READ.
/// - A read after `eof` reports `eof` again; Asio's sockets may wait instead.
/// - The socket options are `no_delay` and `linger`. TCP's other options have no counterpart in
///   RDMA, or are in `stream_options` (`keep_alive`, sizes). There are no message flags: with flags
///   other than 0 nothing is read or written (`operation_not_supported`).
/// - A read of registered memory that receives its bytes directly receives all of them or, if the
///   connection fails before the last byte, none.
///
/// *Cancellation.* All types, for every operation; but `total` has no effect on a write of which
/// some bytes have been sent or offered. A cancelled read has taken no bytes; if the device is
/// writing to its memory, the read completes when the device has finished. A cancelled write
/// reports how many bytes it has written. That number can differ from 0 only for registered memory;
/// the write then completes when the device has released the memory, or when the peer has answered
/// how much it has read. If the connection fails before that answer, the peer may have read more
/// than is reported.
///
/// *Blocking functions* do the work of the context for their stream, so no thread needs to run the
/// context. They sleep until the device or the connection manager reports an event. While another
/// thread, or the handler that calls them, is processing events, they poll every millisecond. They
/// call no handlers. With `non_blocking` they poll once, and so does `available`. A silent peer is
/// probed (`stream_options::keep_alive`) only while the context runs.
///
/// *Thread safety.* Distinct objects: safe. Shared objects: unsafe, as for Asio's sockets.
template <class Executor = asio::any_io_executor>
class basic_stream : public asio::socket_base {
  using impl_type = detail::stream_impl;

public:
  using executor_type = Executor;
  using native_handle_type = ibv_qp*;
  using options_type = stream_options;
  using protocol_type = asio::ip::tcp;
  using endpoint_type = asio::ip::tcp::endpoint;
  using lowest_layer_type = basic_stream;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_stream<Executor1>;
  };

  /// A stream that is not open.
  explicit basic_stream(const executor_type& ex) : io_(ex) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_stream(ExecutionContext& context) : io_(context.get_executor()) {}

  /// Opens: see `open`.
  template <class ExecutorOrContext>
  basic_stream(ExecutorOrContext&& ex, const memory_pool& pool, const stream_options& options = {})
      : basic_stream(std::forward<ExecutorOrContext>(ex)) {
    open(pool, options);
  }
  template <class ExecutorOrContext>
  basic_stream(ExecutorOrContext&& ex, const shared_receives& receives,
               const stream_options& options = {})
      : basic_stream(std::forward<ExecutorOrContext>(ex)) {
    open(receives, options);
  }
  /// Explains wrong arguments.
  template <class ExecutorOrContext, class Source, class... Rest>
  requires(!detail::opens_with<stream_options, Source, Rest...>)
      basic_stream(ExecutorOrContext&& ex, const Source&, const Rest&...)
      : basic_stream(std::forward<ExecutorOrContext>(ex)) {
    detail::wrong_arguments_of_constructor<Source, Rest...>();
  }

  /// The moved-from object is closed.
  basic_stream(basic_stream&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor> basic_stream(basic_stream<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_stream& operator=(basic_stream&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  /// As `close`.
  ~basic_stream() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }
  lowest_layer_type& lowest_layer() noexcept { return *this; }
  const lowest_layer_type& lowest_layer() const noexcept { return *this; }

  /// Makes a queue pair on the pool's device, and posts its receives with memory of the pool. The
  /// queue pair uses the given completion queue, or one that the context's queue pairs share. The
  /// stream can then be connected. Errors: `already_open`, `invalid_argument` for the options,
  /// `error::completion_queue_full`, `error::wrong_device`, those of `memory_pool::allocate`, or
  /// the system's.
  void open(const memory_pool& pool, const completion_queue& queue, const stream_options& options,
            error_code& ec) {
    detail::open_object(
        impl_, ec, [&] { return detail::open_stream(io_.get(), pool, options, queue.impl(), ec); });
  }
  void open(const memory_pool& pool, const stream_options& options, error_code& ec) {
    open(pool, completion_queue(), options, ec);
  }
  void open(const memory_pool& pool, const stream_options& options = {}) {
    open(pool, completion_queue(), options);
  }
  void open(const memory_pool& pool, const completion_queue& queue,
            const stream_options& options = {}) {
    error_code ec;
    open(pool, queue, options, ec);
    detail::throw_if(ec, "stream::open");
  }
  /// Opens the object, like the functions above, with shared receives. `receives` determines the
  /// memory, the completion queue and the size of the receives, and must belong to the object's
  /// execution context. `stream_options::receives` limits how many of the shared receives the
  /// stream uses; a value below `shared_receives_options::per_link` counts as `per_link`.
  /// Additional errors: `bad_descriptor` if `receives` is not open, `error::shared_receives_full`,
  /// `error::shared_receives_closed`.
  void open(const shared_receives& receives, const stream_options& options, error_code& ec) {
    if (!receives.impl()) {
      ec = asio::error::bad_descriptor;
      return;
    }
    detail::open_object(impl_, ec, [&] {
      return detail::open_stream(io_.get(), receives.pool(), options, receives.impl(), ec);
    });
  }
  void open(const shared_receives& receives, const stream_options& options = {}) {
    error_code ec;
    open(receives, options, ec);
    detail::throw_if(ec, "stream::open");
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// The underlying queue pair, for inspection only. Null if the stream is not open or its queue
  /// pair has failed.
  native_handle_type native_handle() const noexcept {
    return impl_ ? detail::native_handle(*impl_) : nullptr;
  }
  /// The stream must be open.
  /// The pool with which the stream was opened, or its own (`stream_options::own_domain`).
  const memory_pool& pool() const noexcept { return detail::pool(*impl_); }
  /// The options in force. The stream must be open.
  const stream_options& options() const noexcept { return detail::options(*impl_); }
  const std::shared_ptr<impl_type>& impl() const noexcept { return impl_; }

  /// The counters since the stream was opened; zeros if it is not open. May be called from any
  /// thread, except while another thread opens, closes or moves the object.
  stream_statistics statistics() const noexcept {
    return impl_ ? detail::statistics(*impl_) : stream_statistics();
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

  /// Ends every operation with `operation_aborted`. The context still sends the written bytes and
  /// then the goodbye, and has work until the peer has acknowledged the goodbye
  /// (`stream_options::linger`). After `set_option(linger(true, 0))` nothing is sent, and the peer
  /// gets `connection_reset`.
  void close(error_code& ec) {
    ec = {};
    close();
  }
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }

  /// Ends every operation with `operation_aborted`. Errors: `bad_descriptor`.
  void cancel(error_code& ec) {
    ec = state();
    if (!ec)
      detail::cancel(*impl_);
  }
  void cancel() {
    error_code ec;
    cancel(ec);
    detail::throw_if(ec, "stream::cancel");
  }

  /// Shuts down one direction or both: the peer reads `eof` after the written bytes. Errors:
  /// `bad_descriptor`, `not_connected`.
  void shutdown(shutdown_type what, error_code& ec) {
    ec = state();
    if (!ec)
      ec = detail::shutdown(*impl_, what);
  }
  void shutdown(shutdown_type what) {
    error_code ec;
    shutdown(what, ec);
    detail::throw_if(ec, "stream::shutdown");
  }

  /// Errors: `bad_descriptor`, `not_connected`.
  endpoint_type remote_endpoint(error_code& ec) const { return endpoint(true, ec); }
  endpoint_type remote_endpoint() const {
    error_code ec;
    const endpoint_type result = endpoint(true, ec);
    detail::throw_if(ec, "stream::remote_endpoint");
    return result;
  }
  /// Unspecified before the stream is connected. Errors: `bad_descriptor`.
  endpoint_type local_endpoint(error_code& ec) const { return endpoint(false, ec); }
  endpoint_type local_endpoint() const {
    error_code ec;
    const endpoint_type result = endpoint(false, ec);
    detail::throw_if(ec, "stream::local_endpoint");
    return result;
  }

  /// Bytes that can be read without waiting. Errors: `bad_descriptor`.
  std::size_t available(error_code& ec) const {
    ec = state();
    return ec ? 0 : detail::available(*impl_);
  }
  std::size_t available() const {
    error_code ec;
    const std::size_t result = available(ec);
    detail::throw_if(ec, "stream::available");
    return result;
  }

  /// Whether `read_some`, `write_some` and `wait` fail with `would_block` instead of blocking.
  bool non_blocking() const noexcept { return impl_ && detail::non_blocking(*impl_); }
  void non_blocking(bool on, error_code& ec) {
    ec = state();
    if (!ec)
      detail::set_non_blocking(*impl_, on);
  }
  void non_blocking(bool on) {
    error_code ec;
    non_blocking(on, ec);
    detail::throw_if(ec, "stream::non_blocking");
  }

  /// `tcp::no_delay`: small writes are sent at once. `linger`: the timeout of a close, 0 to reset
  /// the connection; a disabled `linger` restores `stream_options::linger`. Other options:
  /// `operation_not_supported`.
  template <class Option>
  void set_option(const Option& option, error_code& ec) {
    ec = state();
    if (ec)
      return;
    if constexpr (std::is_same_v<Option, asio::ip::tcp::no_delay>)
      detail::set_no_delay(*impl_, option.value());
    else if constexpr (std::is_same_v<Option, linger>)
      detail::set_linger(*impl_, option);
    else
      ec = asio::error::operation_not_supported;
  }
  template <class Option>
  void set_option(const Option& option) {
    error_code ec;
    set_option(option, ec);
    detail::throw_if(ec, "stream::set_option");
  }
  template <class Option>
  void get_option(Option& option, error_code& ec) const {
    ec = state();
    if (ec)
      return;
    if constexpr (std::is_same_v<Option, asio::ip::tcp::no_delay>)
      option = detail::no_delay(*impl_);
    else if constexpr (std::is_same_v<Option, linger>)
      option = detail::linger(*impl_);
    else
      ec = asio::error::operation_not_supported;
  }
  template <class Option>
  void get_option(Option& option) const {
    error_code ec;
    get_option(option, ec);
    detail::throw_if(ec, "stream::get_option");
  }

  /// Reads the available bytes, at most the buffers' size, and waits until there are some.
  /// Signature `void(error_code, std::size_t)`.
  template <detail::memory_to_fill Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_read_some(const Buffers& buffers, Token&& token = {}) {
    return detail::begin_async<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_reading>{{this}}, token, buffers);
  }
  /// Writes some bytes of the buffers, and waits until there is room. Signature `void(error_code,
  /// std::size_t)`.
  template <detail::memory_to_send Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_write_some(const Buffers& buffers, Token&& token = {}) {
    return detail::begin_async<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_writing>{{this}}, token, buffers);
  }

  /// Receives the next bytes, at least one, in their own registered memory. Signature
  /// `void(error_code, registered_buffer)`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!detail::memory_to_fill<std::decay_t<Token>>) //
      auto async_receive(Token&& token = {}) {
    return detail::begin_async<Token, detail::stream_piece_result::signature>(initiate_piece{this},
                                                                              token);
  }
  /// As `async_read_some` and `async_write_some`. Flags other than 0: `operation_not_supported`.
  template <detail::memory_to_fill Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::is_same_v<std::decay_t<Token>, message_flags>) //
      auto async_receive(const Buffers& buffers, Token&& token = {}) {
    return async_read_some(buffers, std::forward<Token>(token));
  }
  template <detail::memory_to_fill Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_receive(const Buffers& buffers, message_flags flags, Token&& token = {}) {
    return detail::begin_async<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_reading>{{this}, flags}, token, buffers);
  }
  template <detail::memory_to_send Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::is_same_v<std::decay_t<Token>, message_flags>) //
      auto async_send(const Buffers& buffers, Token&& token = {}) {
    return async_write_some(buffers, std::forward<Token>(token));
  }
  template <detail::memory_to_send Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, message_flags flags, Token&& token = {}) {
    return detail::begin_async<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_writing>{{this}, flags}, token, buffers);
  }

  /// Waits until a read or a write would not wait, or until the connection has ended
  /// (`wait_error`). Signature `void(error_code)`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait(wait_type what, Token&& token = {}) {
    return detail::begin_async<Token, void(error_code)>(initiate_wait{this}, token, what);
  }

  /// Blocking forms of the same operations.
  ///@{
  template <detail::memory_to_fill Buffers>
  std::size_t read_some(const Buffers& buffers, error_code& ec) {
    return some<detail::stream_reading>(buffers, ec);
  }
  template <detail::memory_to_fill Buffers>
  std::size_t read_some(const Buffers& buffers) {
    error_code ec;
    const std::size_t n = read_some(buffers, ec);
    detail::throw_if(ec, "stream::read_some");
    return n;
  }
  template <detail::memory_to_send Buffers>
  std::size_t write_some(const Buffers& buffers, error_code& ec) {
    return some<detail::stream_writing>(buffers, ec);
  }
  template <detail::memory_to_send Buffers>
  std::size_t write_some(const Buffers& buffers) {
    error_code ec;
    const std::size_t n = write_some(buffers, ec);
    detail::throw_if(ec, "stream::write_some");
    return n;
  }
  template <detail::memory_to_fill Buffers>
  std::size_t receive(const Buffers& buffers, message_flags flags, error_code& ec) {
    return some<detail::stream_reading>(buffers, ec, flags);
  }
  template <detail::memory_to_fill Buffers>
  std::size_t receive(const Buffers& buffers, message_flags flags = 0) {
    error_code ec;
    const std::size_t n = receive(buffers, flags, ec);
    detail::throw_if(ec, "stream::receive");
    return n;
  }
  template <detail::memory_to_send Buffers>
  std::size_t send(const Buffers& buffers, message_flags flags, error_code& ec) {
    return some<detail::stream_writing>(buffers, ec, flags);
  }
  template <detail::memory_to_send Buffers>
  std::size_t send(const Buffers& buffers, message_flags flags = 0) {
    error_code ec;
    const std::size_t n = send(buffers, flags, ec);
    detail::throw_if(ec, "stream::send");
    return n;
  }
  void wait(wait_type what, error_code& ec) {
    if (what == wait_read)
      run_wait<detail::stream_reading>(ec);
    else if (what == wait_write)
      run_wait<detail::stream_writing>(ec);
    else
      run_wait<detail::stream_error_wait>(ec);
  }
  void wait(wait_type what) {
    error_code ec;
    wait(what, ec);
    detail::throw_if(ec, "stream::wait");
  }
  ///@}

  /// These overloads explain a call with wrong arguments.
  ///@{
  template <detail::no_memory_to_fill Memory, class... Rest>
  detail::wrong_call async_read_some(const Memory&, const Rest&...) {
    return detail::wrong_target<Memory>();
  }
  template <detail::no_memory_to_fill Memory, class... Rest>
  detail::wrong_call read_some(const Memory&, const Rest&...) {
    return detail::wrong_target<Memory>();
  }
  template <detail::no_memory_to_fill Memory, class... Rest>
  detail::wrong_call receive(const Memory&, const Rest&...) {
    return detail::wrong_target<Memory>();
  }
  template <detail::no_memory_to_fill Memory, class Second, class... Rest>
  detail::wrong_call async_receive(const Memory&, const Second&, const Rest&...) {
    return detail::wrong_target<Memory>();
  }
  template <detail::no_memory_to_send Memory, class... Rest>
  detail::wrong_call async_write_some(const Memory&, const Rest&...) {
    return detail::wrong_source<Memory>();
  }
  template <detail::no_memory_to_send Memory, class... Rest>
  detail::wrong_call async_send(const Memory&, const Rest&...) {
    return detail::wrong_source<Memory>();
  }
  template <detail::no_memory_to_send Memory, class... Rest>
  detail::wrong_call write_some(const Memory&, const Rest&...) {
    return detail::wrong_source<Memory>();
  }
  template <detail::no_memory_to_send Memory, class... Rest>
  detail::wrong_call send(const Memory&, const Rest&...) {
    return detail::wrong_source<Memory>();
  }
  template <class... Arguments>
  requires(!detail::opens_with<stream_options, Arguments...>) detail::wrong_call
      open(const Arguments&...) {
    return detail::wrong_arguments_of_open<Arguments...>();
  }
  ///@}

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_stream;

  error_code state() const {
    return impl_ ? error_code() : error_code(asio::error::bad_descriptor);
  }
  endpoint_type endpoint(bool remote, error_code& ec) const {
    endpoint_type result;
    ec = state();
    if (!ec)
      ec = detail::endpoint(*impl_, result, remote);
    return ec ? endpoint_type() : result;
  }

  static error_code check(message_flags flags) {
    return flags == 0 ? error_code() : error_code(asio::error::operation_not_supported);
  }
  template <class Op, class Buffers>
  std::size_t some(const Buffers& buffers, error_code& ec, message_flags flags = 0) {
    ec = state();
    if (!ec)
      ec = check(flags);
    if (ec)
      return 0;
    ibv_sge parts[detail::max_elements<Buffers>()];
    Op op(nullptr);
    ec = detail::give_buffers(op, parts, detail::max_elements<Buffers>(), buffers);
    if (ec)
      return 0;
    op.value = 0;
    const auto keep = impl_;
    detail::run_here(*keep, op, !detail::non_blocking(*keep));
    ec = op.ec;
    return static_cast<std::size_t>(op.value);
  }
  template <class Op>
  void run_wait(error_code& ec) {
    ec = state();
    if (ec)
      return;
    Op op(nullptr);
    if constexpr (requires { op.request; })
      op.request.what = decltype(op.request.what)::wait;
    const auto keep = impl_;
    detail::run_here(*keep, op, !detail::non_blocking(*keep));
    ec = op.ec;
  }

  using initiation = detail::initiation<basic_stream>;

  template <class Op, class Result, std::size_t Most, class Handler, class Prepare>
  void start(Handler&& handler, Prepare&& prepare) {
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    detail::start_operation<Op, Result, Most>(impl_, io_, h, prepare, [](impl_type& i, auto& op) {
      return detail::start(i, static_cast<Op&>(op));
    });
  }

  template <class Op>
  struct initiate_some : initiation {
    message_flags flags = 0;

    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers) const {
      constexpr std::size_t most = detail::max_elements<Buffers>();
      this->self->template start<Op, detail::stream_size_result, most>(
          std::forward<Handler>(handler), [&](auto& op) {
            op.ec = check(flags);
            if (!op.ec)
              op.ec = detail::give_buffers(op, op.sges(), most, buffers);
            return !op.ec;
          });
    }
  };

  struct initiate_piece : initiation {
    template <class Handler>
    void operator()(Handler&& handler) const {
      this->self->template start<detail::stream_reading, detail::stream_piece_result, 0>(
          std::forward<Handler>(handler), [](auto& op) {
            op.request.what = detail::stream_read::kind::piece;
            return true;
          });
    }
  };

  struct initiate_wait : initiation {
    template <class Handler>
    void operator()(Handler&& handler, wait_type what) const {
      const auto prepare = [](auto& op) {
        if constexpr (requires { op.request; })
          op.request.what = decltype(op.request.what)::wait;
        return true;
      };
      if (what == asio::socket_base::wait_read)
        this->self->template start<detail::stream_reading, detail::no_result, 0>(
            std::forward<Handler>(handler), prepare);
      else if (what == asio::socket_base::wait_write)
        this->self->template start<detail::stream_writing, detail::no_result, 0>(
            std::forward<Handler>(handler), prepare);
      else
        this->self->template start<detail::stream_error_wait, detail::no_result, 0>(
            std::forward<Handler>(handler), prepare);
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using stream = basic_stream<>;

} // namespace asio_rdma
