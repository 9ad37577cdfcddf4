// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/detail/initiate.hpp>
#include <asio_rdma/detail/open_impl.hpp>
#include <asio_rdma/detail/stream_buffers.hpp>
#include <asio_rdma/detail/stream_impl.hpp>
#include <asio_rdma/detail/stream_teardown.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/queue_pair.hpp>
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

/// A stream of bytes between two programs, with the interface and the behaviour of
/// `boost::asio::ip::tcp::socket`: Asio's AsyncReadStream, AsyncWriteStream, SyncReadStream and
/// SyncWriteStream. Connected by `acceptor` and `connector`.
///
/// *Writing.* A write copies its bytes to the send buffer (`stream_options::sends`), as much as
/// there is room for, and is complete then. Asynchronous writes of registered memory
/// (`registered_buffer`, `const_buffer`, and in up to three parts what else lies in the stream's
/// pool and is more than 240 bytes) take all of it, of a sequence whose length is not known by its
/// type up to 16 parts. Of more than 240 bytes and less than 32 KiB, or
/// of at least 128 KiB in one piece, it is not copied: the write is complete when the peer's device
/// has read or received it. `asio::async_write` hands a stream at most 64 KiB at a time, so long
/// memory that shall not be copied is given to `async_write_some`. Small writes meet while an
/// earlier one is on its way, unless `tcp::no_delay` is set. Of 32 KiB and more the peer reads by
/// RDMA READ.
///
/// *Reading.* What has come stays in the receives, or in memory of the pool, until it is read. A
/// peer that is ahead of its reader by `stream_options::receives` and the send buffer waits.
/// An asynchronous read of at least 32 KiB of registered memory in one piece, which the device must
/// be allowed to write (`access::local_write`), that waits when the peer writes as much gets it
/// there directly.
///
/// *Allocations.* None from the heap for a read or a write, once it has warmed up, but for what the
/// peer reads by RDMA READ, which is registered: libibverbs allocates for that.
///
/// *Errors.* As a TCP socket's on Linux: `bad_descriptor` if not open; before it is connected
/// `not_connected` for reads and `broken_pipe` for writes; `eof` for reads behind the peer's
/// shutdown or close, `broken_pipe` for writes after a shutdown here or a close there;
/// `connection_reset` or what the device tells when the connection has failed; `operation_aborted`
/// after `cancel` and `close`; `would_block`. Besides, those of `memory_pool::allocate`,
/// `error::buffer_in_use`, `invalid_argument` for a `registered_buffer` of another protection
/// domain than the pool's, `error::protocol_violation` for a peer that breaks the protocol, and
/// `error::device_keeps_memory` as for `basic_connection`.
///
/// *What differs from TCP*, whose connections are the kernel's: here they are the program's.
/// - What was written is sent, and the peer told of a close, by the context that runs, or by the
///   stream's blocking functions: `run()` has work until the peer has it. A context that is
///   destroyed before sends it first, so its destructor blocks, and the peer reads `eof` behind it.
///   Both wait as long as the peer takes some in every `stream_options::linger`, however few bytes.
///   Lost is what a
///   process has that ends without (`std::_Exit`, a signal), or that a stream has whose acceptor or
///   connector was of another context, destroyed before it: the peer gets `connection_reset`.
/// - An error of the connection stays, and is given again; the endpoints are told afterwards, too.
/// - A write hears of the peer's close at once, not from the second on, as that is told by a frame.
/// - A shutdown after the peer's close succeeds, as there is nothing left to do.
/// - A peer that closes with bytes unread ends the stream like any other close: it sends no reset.
///   Nor does one that has shut down both ways: it drops what still comes, and a write that it was
///   to read by RDMA READ, and each one after that, fails with `broken_pipe`. If unread bytes fill
///   its receives, such a write stays pending until the stream is read or closed.
/// - When the connection fails, what had come can still be read; of writes of 32 KiB and more that
///   is what had been read by RDMA READ.
/// - A read after `eof` gives `eof` again, for which Asio's sockets may wait.
/// - Of the socket options there are `no_delay` and `linger`: TCP's other ones name what RDMA has
///   not, or what `stream_options` says (`keep_alive`, sizes). Nor are there message flags: with
///   others than 0 nothing is read or written (`operation_not_supported`).
/// - A read of registered memory that gets its bytes directly gets all of them or, if the
///   connection fails before the last, none.
///
/// *Cancellation.* All types, of every operation; but `total` has no effect on a write once some of
/// it is sent or offered. A cancelled read has taken nothing; if the device is writing to its
/// memory, it ends when that is over. A cancelled write tells how many bytes it has written, which
/// are not 0 only where it was sending registered memory: then it ends when the device has let go,
/// or the peer has answered how much of it has been read. If the connection fails before that
/// answer, the peer may have read more than is reported.
///
/// *Blocking functions* do for their stream what the context would do, so they need no thread that
/// runs it. They sleep until the device or the connection manager tells of something; while another
/// thread, or the handler that calls them, has taken that on, they look every millisecond. They
/// call no handlers. With `non_blocking` they look once, and so does `available`. A silent peer is
/// asked whether it lives (`stream_options::keep_alive`) only while the context runs.
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

  /// Makes a queue pair on the pool's device, in a completion queue that the context's queue pairs
  /// share or in the given one, and posts its receives with memory of the pool. Then it can be
  /// connected. Errors: `already_open`, `invalid_argument` for the options,
  /// `error::completion_queue_full`, `error::wrong_device`, those of `memory_pool::allocate`, or
  /// the system's.
  void open(const memory_pool& pool, const completion_queue& queue, const stream_options& options,
            error_code& ec) {
    detail::open_impl(
        impl_, ec, [&](impl_type& i) { return i.open(queue.impl()); }, io_.get(), pool, options);
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
  /// The same with receives that it shares with others: memory, completion queue and the size of
  /// the receives are theirs, and they are of the object's execution context. Its own
  /// `receives` are the most that it has of them, at least `shared_receives_options::per_link`.
  /// Errors besides: `bad_descriptor` if there are none,
  /// `error::shared_receives_full`, `error::shared_receives_closed`.
  void open(const shared_receives& receives, const stream_options& options, error_code& ec) {
    if (!receives.impl()) {
      ec = asio::error::bad_descriptor;
      return;
    }
    detail::open_impl(
        impl_, ec, [&](impl_type& i) { return i.open(receives.impl()); }, io_.get(),
        receives.pool(), options);
  }
  void open(const shared_receives& receives, const stream_options& options = {}) {
    error_code ec;
    open(receives, options, ec);
    detail::throw_if(ec, "stream::open");
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// The queue pair that carries it, to look at. Null when not open, or when it has failed.
  native_handle_type native_handle() const noexcept {
    return impl_ ? impl_->target_queue_pair()->native_handle() : nullptr;
  }
  /// Only of a stream that is open.
  const memory_pool& pool() const noexcept { return impl_->pool(); }
  /// The options in force, of a stream that is open.
  const stream_options& options() const noexcept { return impl_->options(); }
  const std::shared_ptr<impl_type>& impl() const noexcept { return impl_; }

  /// What has been done since it was opened; nothing if it is not open. From any thread, at any
  /// time but while another one opens, closes or moves the object.
  stream_statistics statistics() const noexcept {
    return impl_ ? impl_->statistics() : stream_statistics();
  }

  /// Ends every operation with `operation_aborted`. What was written is still sent, and then the
  /// peer told, by the context, which has work until the peer has heard (`stream_options::linger`).
  /// After `set_option(linger(true, 0))` nothing is sent, and the peer gets `connection_reset`.
  void close(error_code& ec) {
    ec = {};
    close();
  }
  void close() {
    if (impl_)
      std::exchange(impl_, nullptr)->close();
  }

  /// Ends every operation with `operation_aborted`. Errors: `bad_descriptor`.
  void cancel(error_code& ec) {
    ec = state();
    if (!ec)
      impl_->cancel();
  }
  void cancel() {
    error_code ec;
    cancel(ec);
    detail::throw_if(ec, "stream::cancel");
  }

  /// Ends one way or both: the peer reads `eof` behind what was written. Errors:
  /// `bad_descriptor`, `not_connected`.
  void shutdown(shutdown_type what, error_code& ec) {
    ec = state();
    if (!ec)
      ec = impl_->shutdown(what);
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
    return ec ? 0 : impl_->available();
  }
  std::size_t available() const {
    error_code ec;
    const std::size_t result = available(ec);
    detail::throw_if(ec, "stream::available");
    return result;
  }

  /// Whether `read_some`, `write_some` and `wait` give `would_block` where they would wait.
  bool non_blocking() const noexcept { return impl_ && impl_->non_blocking; }
  void non_blocking(bool on, error_code& ec) {
    ec = state();
    if (!ec)
      impl_->non_blocking = on;
  }
  void non_blocking(bool on) {
    error_code ec;
    non_blocking(on, ec);
    detail::throw_if(ec, "stream::non_blocking");
  }

  /// `tcp::no_delay` lets small writes go at once. `linger` says how long a close goes on (see
  /// `stream_options::linger`; what that was if disabled), 0 to reset the connection. Others:
  /// `operation_not_supported`.
  template <class Option>
  void set_option(const Option& option, error_code& ec) {
    ec = state();
    if (ec)
      return;
    if constexpr (std::is_same_v<Option, asio::ip::tcp::no_delay>)
      impl_->set_no_delay(option.value());
    else if constexpr (std::is_same_v<Option, linger>)
      impl_->set_linger(option);
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
      option = impl_->no_delay();
    else if constexpr (std::is_same_v<Option, linger>)
      option = impl_->linger();
    else
      ec = asio::error::operation_not_supported;
  }
  template <class Option>
  void get_option(Option& option) const {
    error_code ec;
    get_option(option, ec);
    detail::throw_if(ec, "stream::get_option");
  }

  /// Reads what there is, at most the buffers' size, and waits until there is something. Signature
  /// `void(error_code, std::size_t)`.
  template <detail::memory_to_fill Buffers,
            class Token = asio::default_completion_token_t<executor_type>>
  auto async_read_some(const Buffers& buffers, Token&& token = {}) {
    return asio::async_initiate<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_reading>{{this}}, token, buffers);
  }
  /// Writes some of the buffers, and waits until there is room. Signature
  /// `void(error_code, std::size_t)`.
  template <class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  auto async_write_some(const Buffers& buffers, Token&& token = {}) {
    return asio::async_initiate<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_writing>{{this}}, token, buffers);
  }

  /// The next bytes that came, at least one, in their own registered memory. Signature
  /// `void(error_code, registered_buffer)`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  requires(!detail::memory_to_fill<std::decay_t<Token>>) //
      auto async_receive(Token&& token = {}) {
    return asio::async_initiate<Token, detail::stream_piece_result::signature>(initiate_piece{this},
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
    return asio::async_initiate<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_reading>{{this}, flags}, token, buffers);
  }
  template <class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::is_same_v<std::decay_t<Token>, message_flags>) //
      auto async_send(const Buffers& buffers, Token&& token = {}) {
    return async_write_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token = asio::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, message_flags flags, Token&& token = {}) {
    return asio::async_initiate<Token, detail::stream_size_result::signature>(
        initiate_some<detail::stream_writing>{{this}, flags}, token, buffers);
  }

  /// Waits until a read or a write would not, or until the connection has ended (`wait_error`).
  /// Signature `void(error_code)`.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait(wait_type what, Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code)>(initiate_wait{this}, token, what);
  }

  /// The same without a handler.
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
  template <class Buffers>
  std::size_t write_some(const Buffers& buffers, error_code& ec) {
    return some<detail::stream_writing>(buffers, ec);
  }
  template <class Buffers>
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
  template <class Buffers>
  std::size_t send(const Buffers& buffers, message_flags flags, error_code& ec) {
    return some<detail::stream_writing>(buffers, ec, flags);
  }
  template <class Buffers>
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

private:
  template <class>
  friend class basic_stream;

  error_code state() const {
    return impl_ ? error_code() : error_code(asio::error::bad_descriptor);
  }
  endpoint_type endpoint(bool remote, error_code& ec) const {
    endpoint_type result;
    ec = state();
    if (!ec)
      ec = impl_->endpoint(result, remote);
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
    keep->run_here(op, !keep->non_blocking);
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
    keep->run_here(op, !keep->non_blocking);
    ec = op.ec;
  }

  struct initiation {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return self->get_executor(); }
    basic_stream* self;

    template <class Op, class Result, std::size_t Most, class Handler, class Prepare>
    void start(Handler&& handler, Prepare&& prepare) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<Op, Result, Most>(
          self->impl_, self->io_, h, prepare,
          [](impl_type& i, auto& op) { return i.start(static_cast<Op&>(op)); });
    }
  };

  template <class Op>
  struct initiate_some : initiation {
    message_flags flags = 0;

    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers) const {
      constexpr std::size_t most = detail::max_elements<Buffers>();
      this->template start<Op, detail::stream_size_result, most>(
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
      this->template start<detail::stream_reading, detail::stream_piece_result, 0>(
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
        this->template start<detail::stream_reading, detail::no_result, 0>(
            std::forward<Handler>(handler), prepare);
      else if (what == asio::socket_base::wait_write)
        this->template start<detail::stream_writing, detail::no_result, 0>(
            std::forward<Handler>(handler), prepare);
      else
        this->template start<detail::stream_error_wait, detail::no_result, 0>(
            std::forward<Handler>(handler), prepare);
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using stream = basic_stream<>;

} // namespace asio_rdma
