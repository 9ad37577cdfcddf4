// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/connector_impl.hpp>
#include <asio_rdma/queue_pair.hpp>

#include <memory>
#include <ranges>
#include <utility>
#include <vector>

namespace asio_rdma {

/// Connects queue pairs by rdma_cm (rdma_cm(7)), as an Asio I/O object. Any number of connections
/// may be under way at a time. Nothing here blocks, with three exceptions of the kernel's.
///
/// siw makes its TCP connection inside the system call that starts it (rdma_connect(3)). A peer
/// that does not answer TCP holds up, for as long as TCP tries (tcp_syn_retries, two minutes), the
/// thread of the execution context that is there, whoever closes or cancels that attempt, its
/// timeout, and the other connections of that context where they are made or the peer ends them.
/// A program that must not wait connects on a context of its own: a connection that has been made
/// is looked after by its queue pair's context only, and the connector's may end then.
///
/// On RoCE the step to RTR looks for the neighbour once more (ibv_modify_qp(3)); if that has gone
/// since the address was resolved, the thread that is there waits for up to a second.
///
/// On iWARP an attempt that was given up while the peer had not answered is over only when the peer
/// answers or the kernel stops waiting (siw: 10 s). Destroying the connector's execution context
/// before that waits for it.
///
/// As Asio's own I/O objects, it must not outlive its execution context.
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

  /// The moved-from object has no attempts under way, and can make others.
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

  /// Ends every attempt with `operation_aborted`. Connections that were made stay.
  void cancel() {
    if (impl_)
      impl_->cancel();
  }

  /// Connects an open queue pair to who listens at the endpoint. Receives may be started before.
  /// A loopback address stands for the queue pair's own device where loopback has none; if that has
  /// no address of the family that leads there, the error is `error::loopback_address`, and its
  /// message names those that can be used. Gives the endpoints and what the acceptor sent
  /// along, after a rejection too. Errors:
  /// `error::peer_not_listening`, `error::rejected` (by the peer's program, or its backlog is
  /// full), `error::unreachable`, `error::wrong_device` when the way to the endpoint leads by
  /// another device than the queue pair's, `timed_out`, `already_connected`, `message_size`,
  /// `invalid_argument` for private data with anything but a bare queue pair,
  /// `operation_not_supported` for a queue pair that is not of type `IBV_QPT_RC`, `bad_descriptor`,
  /// the system's, or why the queue pair failed meanwhile, such as `error::device_fatal`. The queue
  /// pair can then be used for another attempt, unless it has failed, as it has when the peer had
  /// accepted, and on iWARP when the peer had been reached. Supports all cancellation types: the
  /// queue pair is as after an error. Closing the queue pair cancels too.
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  auto async_connect(Object& object, const endpoint_type& endpoint, const connect_options& options,
                     Token&& token = {}) {
    return asio::async_initiate<Token, detail::info_result::signature>(
        initiate_connect{this}, token, detail::connection_end(object), std::vector{endpoint},
        options);
  }
  template <connectable Object, class Token = asio::default_completion_token_t<executor_type>>
  requires(!std::same_as<std::decay_t<Token>, connect_options>) auto async_connect(
      Object& object, const endpoint_type& endpoint, Token&& token = {}) {
    return async_connect(object, endpoint, connect_options(), std::forward<Token>(token));
  }

  /// Tries the endpoints of a range, such as a resolver's results, in order until one connects;
  /// `connection_info::remote` tells which. The error is that of the last tried; `not_found` if
  /// there are none. On iWARP the first that could be reached is the last.
  template <connectable Object, std::ranges::input_range Endpoints,
            class Token = asio::default_completion_token_t<executor_type>>
  requires std::convertible_to<std::ranges::range_reference_t<const Endpoints>, endpoint_type>
  auto async_connect(Object& object, const Endpoints& endpoints, const connect_options& options,
                     Token&& token = {}) {
    std::vector<endpoint_type> list;
    for (auto&& e : endpoints)
      list.push_back(e);
    return asio::async_initiate<Token, detail::info_result::signature>(
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

private:
  template <class>
  friend class basic_connector;

  std::shared_ptr<impl_type> make_impl() const {
    return std::make_shared<impl_type>(detail::cm_service::of(io_.context()), io_.get());
  }

  struct initiate_connect {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return self->get_executor(); }

    template <class Handler>
    void operator()(Handler&& handler, const detail::connection_end& end,
                    const std::vector<endpoint_type>& endpoints,
                    const connect_options& options) const {
      if (!self->impl_) // which has been moved from
        self->impl_ = self->make_impl();
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::connect_operation, detail::info_result, 0>(
          self->impl_, self->io_, h, [&](auto& op) { return detail::give(end, op); },
          [&](impl_type& i, auto& op) { return i.start(op, end.queue_pair, endpoints, options); });
    }

    basic_connector* self;
  };

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using connector = basic_connector<>;

} // namespace asio_rdma
