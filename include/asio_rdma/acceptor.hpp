// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor_statistics.hpp>
#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/connectable.hpp>
#include <asio_rdma/detail/connecting/connecting_face.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/detail/verbs/wrong_call.hpp>
#include <asio_rdma/queue_pair.hpp>

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/execution/executor.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/is_executor.hpp>
#include <boost/asio/socket_base.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace asio_rdma {

namespace detail {

struct info_result {
  using signature = void(error_code, connection_info);
  static std::tuple<connection_info> arguments(connect_operation& op) {
    return {std::move(op.info)};
  }
};

template <class Object, class Source>
concept opened_from = connectable<Object> && requires(Object& o, const Source& s, error_code& ec) {
  { o.open(s, typename Object::options_type(), ec) } -> std::same_as<void>;
};

template <class Token>
concept no_options = !std::same_as<std::decay_t<Token>, accept_options>;

/// A completion token of an accept that makes an object, rather than options of either kind.
template <class Object, class Token>
concept no_options_of =
    no_options<Token> && !std::same_as<std::decay_t<Token>, typename Object::options_type>;

template <class Context>
concept execution_context = std::convertible_to<Context&, asio::execution_context&>;

/// An executor, or an execution context, on which an object can be made.
template <class Where, class Object>
concept home_of = (execution_context<Where> || asio::is_executor<std::decay_t<Where>>::value ||
                   asio::execution::is_executor<std::decay_t<Where>>::value) &&
                  std::constructible_from<Object, Where&>;

/// The executor of a `home_of`, as a value: an initiation can keep it.
template <class Where>
auto executor_of(Where& where) {
  if constexpr (execution_context<Where>)
    return where.get_executor();
  else
    return where;
}

/// Returns false and stores the error in the operation if there is no queue pair to connect.
inline bool give(const connection_end& end, connect_operation& op) {
  if (end.queue_pair == nullptr)
    op.ec = asio::error::bad_descriptor;
  op.target = end.target;
  return end.queue_pair != nullptr;
}

} // namespace detail

#pragma GCC visibility push(default)
/// A request for a connection that has been neither accepted nor rejected. Move-only; the
/// destructor rejects the request. It must not outlive the execution context of the acceptor that
/// received it.
class connection_request {
public:
  connection_request() noexcept = default;
  explicit connection_request(std::shared_ptr<detail::cm_connection> c) noexcept
      : connection_(std::move(c)) {}
  connection_request(connection_request&&) noexcept = default;
  connection_request& operator=(connection_request&& other) noexcept {
    if (this != &other) {
      drop();
      connection_ = std::move(other.connection_);
    }
    return *this;
  }
  ~connection_request() { drop(); }

  bool is_open() const noexcept { return connection_ != nullptr; }
  /// The id of the request, for inspection and for options (rdma_set_option(3)); this object owns
  /// it. Null if the request is not open, or if the connector has given up.
  rdma_cm_id* native_handle() const;
  /// The endpoints and the private data of the connector's program. Empty if the request is not
  /// open.
  connection_info info() const;
  /// The device that received the request: a queue pair of that device can accept it. Empty if the
  /// request is not open.
  std::string device_name() const;

  /// Rejects the request. The connector gets `error::rejected` and `data`. Errors:
  /// `connection_aborted` if the connector has given up, `message_size`, `bad_descriptor`, or the
  /// system's.
  void reject(const private_data& data, error_code& ec);
  void reject(const private_data& data = {}) {
    error_code ec;
    reject(data, ec);
    detail::throw_if(ec, "reject");
  }

  std::shared_ptr<detail::cm_connection> release() noexcept { return std::move(connection_); }

private:
  void drop() noexcept;

  std::shared_ptr<detail::cm_connection> connection_;
};
#pragma GCC visibility pop

/// An Asio I/O object that listens for connections by rdma_cm (rdma_cm(7)). The connection
/// manager's events are processed in the execution context, and no function blocks. An exception is
/// RoCE: if the connector's neighbour entry has expired, accepting blocks for up to a second (as in
/// `basic_connector`). Private data with an acceptance is for bare queue pairs only
/// (`invalid_argument`). A program that must know its connectors decides by
/// `accept_options::admit`.
///
/// A queue pair that accepts must be open, on the device of the address that the connector uses.
/// Its receives must have been started, because the connector may send at once. On iWARP the
/// connector must send first: the accepting side does not send before it has received something
/// (RFC 5044, section 7).
///
/// Like Asio's own I/O objects, an acceptor must not outlive its execution context.
///
/// Thread safety: distinct objects safe, shared objects unsafe.
template <class Executor = asio::any_io_executor>
class basic_acceptor {
  using impl_type = detail::acceptor_impl;

public:
  using executor_type = Executor;
  using endpoint_type = asio::ip::tcp::endpoint;
  using native_handle_type = rdma_cm_id*;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_acceptor<Executor1>;
  };

  /// An acceptor that is not open.
  explicit basic_acceptor(const executor_type& ex) : io_(ex) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_acceptor(ExecutionContext& context) : io_(context.get_executor()) {}
  /// Opens: see `open`.
  template <class ExecutorOrContext>
  basic_acceptor(ExecutorOrContext&& ex, const endpoint_type& endpoint,
                 int backlog = asio::socket_base::max_listen_connections)
      : basic_acceptor(std::forward<ExecutorOrContext>(ex), endpoint,
                       acceptor_options().set_backlog(backlog)) {}
  template <class ExecutorOrContext>
  basic_acceptor(ExecutorOrContext&& ex, const endpoint_type& endpoint,
                 const acceptor_options& options)
      : basic_acceptor(std::forward<ExecutorOrContext>(ex)) {
    open(endpoint, options);
  }

  basic_acceptor(basic_acceptor&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor>
  basic_acceptor(basic_acceptor<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_acceptor& operator=(basic_acceptor&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  /// As `close`.
  ~basic_acceptor() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }

  /// Listens at the endpoint: the address of an RDMA device, or the unspecified address (0.0.0.0,
  /// ::) for all devices. With port 0 the system chooses the port. At most `backlog` requests wait
  /// to be accepted. Further ones are rejected, or in their place those of an address that has
  /// more. Peers that connect at the same time all count, even if they are accepted one after the
  /// other. A request that its connector has abandoned makes room for another one if the device
  /// reports that (siw does not). A request that is lost in the kernel ends with the connector's
  /// timeout at the latest. `acceptor_options` has further limits of what connectors can cost.
  /// Errors: `already_open`, `invalid_argument` if no handshake may be under way or the patience is
  /// negative, `address_in_use`, `error::no_gid` if no RDMA device has the address,
  /// `error::loopback_address`, `access_denied` for a privileged port, or the system's. Without an
  /// RDMA device: `error::no_device`. If the process cannot use a device or the connection manager:
  /// `error::device_permission`, `error::device_file_missing`, `error::module_missing` or
  /// `error::provider_missing`; the message names the file, the module or the device.
  void open(const endpoint_type& endpoint, const acceptor_options& options, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::open_acceptor(io_.context(), io_.get(), endpoint, options, ec);
    });
  }
  void open(const endpoint_type& endpoint, const acceptor_options& options) {
    error_code ec;
    open(endpoint, options, ec);
    detail::throw_if(ec, "acceptor::open", endpoint);
  }
  void open(const endpoint_type& endpoint, int backlog, error_code& ec) {
    open(endpoint, acceptor_options().set_backlog(backlog), ec);
  }
  void open(const endpoint_type& endpoint,
            int backlog = asio::socket_base::max_listen_connections) {
    open(endpoint, acceptor_options().set_backlog(backlog));
  }

  /// Listens with an id that has been bound (rdma_bind_addr(3)) and does not listen yet, so that
  /// its options can be set before. The id moves to the context's event channel
  /// (rdma_migrate_id(3), which blocks until the id's earlier events are acknowledged). Its
  /// `context` member belongs to the acceptor, and the id is destroyed at close. After an error the
  /// caller still owns the id, with an event channel of its own if it had already moved. If the id
  /// cannot move back, for lack of a descriptor or of kernel memory, its `context` is null, and the
  /// caller must destroy it before the execution context. Errors: `already_open`,
  /// `invalid_argument` for null or for options as in `open`, or the system's.
  void assign(native_handle_type id, const acceptor_options& options, error_code& ec) {
    detail::open_object(impl_, ec, [&] {
      return detail::adopt_acceptor(io_.context(), io_.get(), id, options, ec);
    });
  }
  void assign(native_handle_type id, const acceptor_options& options) {
    error_code ec;
    assign(id, options, ec);
    detail::throw_if(ec, "acceptor::assign");
  }
  void assign(native_handle_type id, int backlog, error_code& ec) {
    assign(id, acceptor_options().set_backlog(backlog), ec);
  }
  void assign(native_handle_type id, int backlog = asio::socket_base::max_listen_connections) {
    assign(id, acceptor_options().set_backlog(backlog));
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// Null if the acceptor is not open or its device has been removed.
  native_handle_type native_handle() const {
    return impl_ ? detail::native_handle(*impl_) : nullptr;
  }
  /// The endpoint at which the acceptor listens. Errors: `bad_descriptor` if not open.
  endpoint_type local_endpoint(error_code& ec) const {
    ec = impl_ ? error_code() : error_code(asio::error::bad_descriptor);
    return impl_ ? detail::local_endpoint(*impl_) : endpoint_type();
  }
  endpoint_type local_endpoint() const {
    error_code ec;
    endpoint_type result = local_endpoint(ec);
    detail::throw_if(ec, "local_endpoint");
    return result;
  }

  /// The counters since the acceptor was opened; zeros if it is not open. A request that is refused
  /// because of its protocol, or by the program (`accept_options::admit`), is reported nowhere
  /// else: the operation waits for the next request. May be called from any thread, except while
  /// another thread opens, closes or moves the object.
  acceptor_statistics statistics() const {
    return impl_ ? detail::statistics(*impl_) : acceptor_statistics();
  }

  /// Stops listening, rejects the waiting requests, and ends the operations that wait for a request
  /// with `operation_aborted`. The acceptance of a request that was taken continues.
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }
  /// Ends the operations that wait for a request with `operation_aborted`.
  void cancel() {
    if (impl_)
      detail::cancel(*impl_);
  }

  /// Takes the next request and connects the queue pair, or the object that has one. A request of a
  /// peer that does not use the object's protocol, or that `accept_options::admit` does not admit,
  /// is rejected, and the operation waits for the next one; `statistics` counts such requests.
  /// Errors: `already_connected`, at once, if the queue
  /// pair is connected or being connected, or waits in another `async_accept` of the acceptor;
  /// `operation_not_supported` for a queue pair that is not of type `IBV_QPT_RC`;
  /// `error::wrong_device`; `connection_aborted` if the connector gave up; `timed_out`;
  /// `message_size`; `error::device_removed` if the acceptor's device was removed; `bad_descriptor`
  /// if the queue pair is closed before a request arrives; the system's; or the reason of a
  /// concurrent failure of the queue pair. Cancellation: all types. If the operation is cancelled
  /// before a request arrives, the queue pair is unchanged and no request is lost; after that the
  /// queue pair has failed, and `total` alone has no effect. Closing the queue pair after a request
  /// has arrived also cancels the operation. A failed object can accept again after it has been
  /// closed and opened.
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  auto async_accept(Object& object, const accept_options& options, Token&& token = {}) {
    return detail::begin_async<Token, detail::info_result::signature>(
        initiate_accept{this}, token, detail::connection_end(object), options);
  }
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  requires detail::no_options<Token>
  auto async_accept(Object& object, Token&& token = {}) {
    return async_accept(object, accept_options(), std::forward<Token>(token));
  }

  /// Accepts, like the function above, with a new object. The operation opens the object on the
  /// acceptor's executor, with a pool or shared receives and, if they are given, the object's
  /// options: `async_accept<stream>(pool, token)`.
  /// Signature `void(error_code, Object)`: after an error, which may also be one of the object's
  /// `open`, the object is not open. A stream reports its peer by `remote_endpoint`, as a socket
  /// does; to get the `connection_info` of another object, use the form above.
  ///
  /// Errors caused by one connector, once its request has been taken, are not reported: the next
  /// request is taken, with an object that is opened anew. These errors are `connection_aborted`,
  /// `connection_reset`, `broken_pipe`, `timed_out`, `error::unreachable`, and errors of the queue
  /// pair that the connector's first bytes caused. If the acceptor listens at the addresses of all
  /// devices, `error::wrong_device` is one of them too. `close` and `cancel` of the acceptor then
  /// end the operation with `operation_aborted`.
  template <class Object, class Source>
  requires detail::opened_from<Object, Source>
  auto async_accept(const Source& source) {
    return async_accept<Object>(source, typename Object::options_type(), accept_options(),
                                asio::default_completion_token_t<executor_type>());
  }
  template <class Object, class Source, class Token>
  requires detail::opened_from<Object, Source> && detail::no_options_of<Object, Token>
  auto async_accept(const Source& source, Token&& token) {
    return async_accept<Object>(source, typename Object::options_type(), accept_options(),
                                std::forward<Token>(token));
  }
  template <class Object, class Source,
            class Token = asio::default_completion_token_t<executor_type>>
  requires detail::opened_from<Object, Source> && detail::no_options<Token>
  auto async_accept(const Source& source, const typename Object::options_type& options,
                    Token&& token = {}) {
    return async_accept<Object>(source, options, accept_options(), std::forward<Token>(token));
  }
  template <class Object, class Source,
            class Token = asio::default_completion_token_t<executor_type>>
  requires detail::opened_from<Object, Source>
  auto async_accept(const Source& source, const typename Object::options_type& options,
                    const accept_options& how, Token&& token = {}) {
    return accept_on<Object>(get_executor(), source, options, how, token);
  }

  /// Accepts, with the errors of the functions above, with a new object on another executor: a
  /// strand, or an execution context that another thread runs, for instance. `where` is the
  /// executor, or the execution context: `async_accept<stream>(where, pool, token)`. The object
  /// belongs to the context of `where`, as if it had been made with `where`; shared receives must
  /// belong to that context. The accept itself is work of the acceptor's context only, and its
  /// handler's default executor is the acceptor's. The context of `where` must exist until the
  /// handler has been called or destroyed.
  template <class Object, class Where, class Source>
  requires detail::home_of<Where, Object> && detail::opened_from<Object, Source>
  auto async_accept(Where&& where, const Source& source) {
    return async_accept<Object>(where, source, typename Object::options_type(), accept_options(),
                                asio::default_completion_token_t<executor_type>());
  }
  template <class Object, class Where, class Source, class Token>
  requires detail::home_of<Where, Object> && detail::opened_from<Object, Source> &&
      detail::no_options_of<Object, Token>
  auto async_accept(Where&& where, const Source& source, Token&& token) {
    return async_accept<Object>(where, source, typename Object::options_type(), accept_options(),
                                std::forward<Token>(token));
  }
  template <class Object, class Where, class Source,
            class Token = asio::default_completion_token_t<executor_type>>
  requires detail::home_of<Where, Object> && detail::opened_from<Object, Source> &&
      detail::no_options<Token>
  auto async_accept(Where&& where, const Source& source,
                    const typename Object::options_type& options, Token&& token = {}) {
    return async_accept<Object>(where, source, options, accept_options(),
                                std::forward<Token>(token));
  }
  template <class Object, class Where, class Source,
            class Token = asio::default_completion_token_t<executor_type>>
  requires detail::home_of<Where, Object> && detail::opened_from<Object, Source>
  auto async_accept(Where&& where, const Source& source,
                    const typename Object::options_type& options, const accept_options& how,
                    Token&& token = {}) {
    return accept_on<Object>(detail::executor_of(where), source, options, how, token);
  }

  /// Takes the next request, for inspection before it is accepted or rejected. Errors:
  /// `bad_descriptor` if not open, `operation_aborted`, `error::device_removed` if the acceptor's
  /// device was removed. Cancellation: all types; no request is lost.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_request(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code, connection_request)>(
        initiate_wait_request{this}, token);
  }

  /// Accepts a request taken by `async_wait_request`. Otherwise as the other `async_accept`, but a
  /// connector that does not use the object's protocol ends the operation, with
  /// `error::incompatible_peer`. The program has seen the request, so `accept_options::admit` must
  /// not be set (`invalid_argument`).
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  auto async_accept(connection_request request, Object& object, const accept_options& options,
                    Token&& token = {}) {
    return detail::begin_async<Token, detail::info_result::signature>(
        initiate_accept_request{io_}, token, request.release(), detail::connection_end(object),
        options);
  }
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  requires detail::no_options<Token>
  auto async_accept(connection_request request, Object& object, Token&& token = {}) {
    return async_accept(std::move(request), object, accept_options(), std::forward<Token>(token));
  }

  /// These overloads explain a call with wrong arguments.
  ///@{
  template <class First, class... Rest>
  requires(!connectable<First> && !std::same_as<First, connection_request>) detail::wrong_call
      async_accept(const First&, const Rest&...) {
    return detail::wrong_object_to_accept<First>();
  }
  template <connectable Object, class... Arguments>
  requires((!connectable<Arguments> && !std::same_as<Arguments, connection_request> &&
            !detail::opened_from<Object, Arguments>)&&...) detail::wrong_call
      async_accept(const Arguments&...) {
    return detail::wrong_object_to_accept<Object>();
  }
  template <class Object, class Source, class... Rest>
  requires(!connectable<Object> &&
           !std::convertible_to<const Source&, const Object&>) detail::wrong_call
      async_accept(const Source&, const Rest&...) {
    return detail::wrong_object_to_accept<Object>();
  }
  ///@}

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_acceptor;

  template <class Object, class Where, class Source, class Token>
  auto accept_on(const Where& where, const Source& source,
                 const typename Object::options_type& options, const accept_options& how,
                 Token& token) {
    return detail::begin_async<Token, void(error_code, Object)>(initiate_accept_made<Object>{this},
                                                                token, where, source, options, how);
  }

  struct prepare_accept {
    bool operator()(detail::accept_operation& op) const {
      op.qp = end.queue_pair;
      op.options = options;
      op.cancels = cancels;
      return detail::give(end, op);
    }

    const detail::connection_end& end;
    const accept_options& options;
    const std::optional<std::uint64_t>& cancels;
  };
  struct start_accept {
    bool operator()(impl_type& impl, detail::accept_operation& op) const {
      return detail::start(impl, op);
    }
  };

  // Whether the error occurred after a request was taken, so that the connector may have caused it.
  struct taken_result {
    static std::tuple<bool> arguments(const detail::accept_operation& op) { return {op.taken}; }
  };

  // The operation keeps no reference to the acceptor, which may be moved or destroyed meanwhile.
  template <class Object, class Source>
  struct accept_made {
    template <class Self>
    void operator()(Self& self) {
      self.reset_cancellation_state(asio::enable_total_cancellation());
      const detail::io_executor<Executor> executor = io;
      error_code ec;
      object->open(source, options, ec);
      if (ec)
        return detail::complete_immediately(std::move(self), executor.get(), ec, false);
      const std::shared_ptr<impl_type> impl = from;
      const detail::connection_end end(*object);
      const accept_options o = how;
      const auto since = cancels;
      Self handler(std::move(self));
      detail::start_operation<detail::accept_operation, taken_result, 0>(
          impl, executor, handler, prepare_accept{end, o, since}, start_accept());
    }
    template <class Self>
    void operator()(Self& self, error_code ec, bool taken) {
      if (ec)
        object->close();
      if (ec && taken && from && detail::is_of_connector(*from, ec)) {
        if (self.cancelled() == asio::cancellation_type::none)
          return accept_again(self);
        ec = asio::error::operation_aborted;
      }
      const auto made = std::move(object); // moved out of self before the handler runs
      self.complete(ec, std::move(*made));
    }
    // An exception would lose the handler, so a failed allocation becomes an error. The thread runs
    // a handler of this operation, so the operation may complete here.
    template <class Self>
    void accept_again(Self& self) {
      const detail::io_executor<Executor> executor = io;
      const std::shared_ptr<impl_type> impl = from;
      const auto since = cancels;
      detail::connection_end end;
      accept_options o;
      error_code ec;
      try {
        object->open(source, options, ec);
        end = detail::connection_end(*object);
        o = how;
      } catch (const std::bad_alloc&) {
        ec = asio::error::no_memory;
      }
      if (ec)
        return self(ec, false);
      Self handler(std::move(self));
      detail::start_next_operation<detail::accept_operation, taken_result, 0>(
          impl, executor, handler, prepare_accept{end, o, since}, start_accept(),
          [](Self& unstarted, const error_code& why) { unstarted(why, false); });
    }

    std::shared_ptr<impl_type> from;
    detail::io_executor<Executor> io;
    std::optional<std::uint64_t> cancels;
    Source source;
    typename Object::options_type options;
    accept_options how;
    std::unique_ptr<Object> object;
  };

  // Makes the object when the operation is launched: a deferred operation can be copied, and
  // launched more than once.
  template <class Object>
  struct initiate_accept_made : detail::initiation<basic_acceptor> {
    template <class Handler, class Where, class Source>
    void operator()(Handler&& handler, const Where& where, const Source& source,
                    const typename Object::options_type& options, const accept_options& how) const {
      std::optional<std::uint64_t> cancels;
      if (this->self->impl_)
        cancels = detail::cancels(*this->self->impl_);
      asio::async_compose<Handler, void(error_code, Object)>(
          accept_made<Object, Source>{this->self->impl_, this->self->io_, cancels, source, options,
                                      how, std::make_unique<Object>(where)},
          handler, this->get_executor());
    }
  };

  struct request_result {
    static std::tuple<connection_request> arguments(detail::accept_operation& op) {
      return {connection_request(std::move(op.request))};
    }
  };

  struct initiate_accept : detail::initiation<basic_acceptor> {
    template <class Handler>
    void operator()(Handler&& handler, const detail::connection_end& end,
                    const accept_options& options) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      const std::optional<std::uint64_t> none;
      detail::start_operation<detail::accept_operation, detail::info_result, 0>(
          this->self->impl_, this->self->io_, h, prepare_accept{end, options, none},
          start_accept());
    }
  };

  struct initiate_wait_request : detail::initiation<basic_acceptor> {
    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::accept_operation, request_result, 0>(
          this->self->impl_, this->self->io_, h, [](auto&) { return true; },
          [](impl_type& i, auto& op) { return detail::start(i, op); });
    }
  };

  struct initiate_accept_request {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return io.get(); }

    template <class Handler>
    void operator()(Handler&& handler, const std::shared_ptr<detail::cm_connection>& request,
                    const detail::connection_end& end, const accept_options& options) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      const detail::io_executor<Executor> completing(
          io.get(), request ? detail::context_of(*request) : io.context());
      detail::start_operation<detail::connect_operation, detail::info_result, 0>(
          request, completing, h, [&](auto& op) { return detail::give(end, op); },
          [&](detail::cm_connection& c, auto& op) {
            return detail::start(c, op, end.queue_pair, options);
          });
    }

    detail::io_executor<Executor> io;
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using acceptor = basic_acceptor<>;

} // namespace asio_rdma
