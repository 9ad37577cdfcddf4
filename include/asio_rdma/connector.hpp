// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/connecting/connecting_face.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/verbs/wrong_call.hpp>
#include <asio_rdma/queue_pair.hpp>

#include <memory>
#include <ranges>
#include <utility>
#include <vector>

namespace asio_rdma {

/// An Asio I/O object that connects queue pairs by rdma_cm (rdma_cm(7)). Any number of connection
/// attempts may be pending. No function blocks, with two exceptions inside the kernel.
///
/// A thread of the library's calls rdma_connect(3). siw makes its TCP connection inside that call:
/// if the peer does not answer TCP, the call lasts as long as TCP tries (tcp_syn_retries, two
/// minutes). The attempt's timeout, its cancellation and `close` of the queue pair do not wait for
/// the call. But on iWARP the kernel uses the queue pair until the call returns. So a queue pair
/// whose attempt ends meanwhile has failed, and the destruction of the connector's execution
/// context waits for the call. The thread is started by the first attempt of the context, and more,
/// up to 32, if calls are not over when further attempts need them. If the first thread cannot be
/// started, attempts fail with the system's error. A context whose concurrency hint excludes
/// threads (BOOST_ASIO_CONCURRENCY_HINT_UNSAFE) makes the call itself, and is blocked.
///
/// An established connection depends only on its queue pair's context, so the connector's context
/// may be destroyed then.
///
/// On RoCE the step to RTR resolves the neighbour once more (ibv_modify_qp(3)). If the neighbour
/// entry has expired since the address was resolved, the calling thread waits for up to a second.
///
/// On iWARP an attempt that was abandoned before the peer answered ends only when the peer answers
/// or the kernel stops waiting (siw: 10 s). The destruction of the connector's execution context
/// waits for the end of the attempt.
///
/// Like Asio's own I/O objects, a connector must not outlive its execution context.
///
/// Thread safety: distinct objects safe, shared objects unsafe.
template <class Executor = asio::any_io_executor>
class basic_connector {
  using impl_type = detail::connector_impl;

public:
  using executor_type = Executor;
  using endpoint_type = asio::ip::tcp::endpoint;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_connector<Executor1>;
  };

  explicit basic_connector(const executor_type& ex) : io_(ex), impl_(make_impl()) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_connector(ExecutionContext& context)
      : basic_connector(executor_type(context.get_executor())) {}

  /// The moved-from object has no pending attempts, and can start new ones.
  basic_connector(basic_connector&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor>
  basic_connector(basic_connector<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::move(other.impl_)) {}
  basic_connector& operator=(basic_connector&& other) noexcept {
    if (this != &other) {
      cancel();
      io_ = other.io_;
      impl_ = std::move(other.impl_);
    }
    return *this;
  }
  /// As `cancel`.
  ~basic_connector() { cancel(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }

  /// Ends every attempt with `operation_aborted`. Established connections remain.
  void cancel() {
    if (impl_)
      detail::cancel(*impl_);
  }

  /// Connects an open queue pair to the listener at the endpoint. Receives may be started before. A
  /// loopback address stands for the queue pair's own device if loopback has no RDMA device. If the
  /// queue pair's device has no suitable address of that family, the error is
  /// `error::loopback_address`, and its message names the usable addresses. The result is the
  /// endpoints and the acceptor's private data, after a rejection too. Errors:
  /// `error::peer_not_listening`, `error::rejected` (by the peer's program, also by its
  /// `accept_options::admit`, or its backlog is full,
  /// or the queue pair's number is that of a connection whose end the peer has missed: then the
  /// endpoint is asked again after 10 ms, 20 ms and so on, doubled, within
  /// `connect_options::timeout`), `error::unreachable`, `error::wrong_device` if the route to the
  /// endpoint leads through another device than the queue pair's, `error::incompatible_peer` if the
  /// acceptor's object is of another kind (queue pair, connection, stream) or speaks another
  /// version of the protocol (the message has both), `timed_out`, `already_connected`,
  /// `message_size` for more private data than a request carries (`private_data`),
  /// `operation_not_supported` for a queue pair that is not of type `IBV_QPT_RC`, `bad_descriptor`,
  /// the system's, or the reason of a concurrent failure of the queue pair, such as
  /// `error::device_removed`. If the process cannot use the connection manager:
  /// `error::device_permission`, `error::device_file_missing` or `error::module_missing`. After an
  /// error the queue pair can be used for another attempt, unless
  /// it has failed. It has failed if the peer had accepted, and on iWARP if the peer had been
  /// reached, or rdma_connect(3) still tried to. Cancellation: all types; the queue pair is in the
  /// state that it has after an error. `total` alone has no effect once the queue pair would have
  /// failed. Closing the queue pair also cancels the attempt.
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  auto async_connect(Object& object, const endpoint_type& endpoint, const connect_options& options,
                     Token&& token = {}) {
    return detail::begin_async<Token, detail::info_result::signature>(
        initiate_connect{this}, token, detail::connection_end(object), std::vector{endpoint},
        options);
  }
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, connect_options>) auto async_connect(
      Object& object, const endpoint_type& endpoint, Token&& token = {}) {
    return async_connect(object, endpoint, connect_options(), std::forward<Token>(token));
  }

  /// Tries the endpoints of a range, such as a resolver's results, in order until one connects;
  /// `connection_info::remote` reports that endpoint. The error is that of the last endpoint tried;
  /// `not_found` if the range is empty. The last is one with `error::device_removed`, or on iWARP
  /// one that could be reached, or that rdma_connect(3) still tried to reach at its timeout.
  template <connectable Object, std::ranges::input_range Endpoints,
            class Token = asio::default_completion_token_t<executor_type>>
  requires std::convertible_to<std::ranges::range_reference_t<const Endpoints>, endpoint_type>
  auto async_connect(Object& object, const Endpoints& endpoints, const connect_options& options,
                     Token&& token = {}) {
    std::vector<endpoint_type> list;
    for (auto&& e : endpoints)
      list.push_back(e);
    return detail::begin_async<Token, detail::info_result::signature>(
        initiate_connect{this}, token, detail::connection_end(object), std::move(list), options);
  }
  template <connectable Object, std::ranges::input_range Endpoints,
            class Token = asio::default_completion_token_t<executor_type>>
  requires(std::convertible_to<std::ranges::range_reference_t<const Endpoints>, endpoint_type> &&
           !std::same_as<std::decay_t<Token>,
                         connect_options>) auto async_connect(Object& object,
                                                              const Endpoints& endpoints,
                                                              Token&& token = {}) {
    return async_connect(object, endpoints, connect_options(), std::forward<Token>(token));
  }

  /// These overloads explain a call with wrong arguments.
  ///@{
  template <class Object, class... Rest>
  requires(!connectable<Object>) detail::wrong_call async_connect(const Object&, const Rest&...) {
    return detail::wrong_object_to_connect<Object>();
  }
  template <connectable Object, class Where, class Options, class Token>
  requires(!std::convertible_to<const Options&, connect_options>) detail::wrong_call
      async_connect(const Object&, const Where&, const Options&, const Token&) {
    return detail::wrong_arguments_of_connect<Where, Options>();
  }
  ///@}

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_connector;

  std::shared_ptr<impl_type> make_impl() const {
    return detail::make_connector(io_.context(), io_.get());
  }

  struct initiate_connect : detail::initiation<basic_connector> {
    template <class Handler>
    void operator()(Handler&& handler, const detail::connection_end& end,
                    const std::vector<endpoint_type>& endpoints,
                    const connect_options& options) const {
      if (!this->self->impl_) // moved from
        this->self->impl_ = this->self->make_impl();
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::connect_operation, detail::info_result, 0>(
          this->self->impl_, this->self->io_, h, [&](auto& op) { return detail::give(end, op); },
          [&](impl_type& i, auto& op) {
            return detail::start(i, op, end.queue_pair, endpoints, options);
          });
    }
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using connector = basic_connector<>;

} // namespace asio_rdma
