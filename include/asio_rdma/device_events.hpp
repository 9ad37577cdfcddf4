// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/queues/device_events_face.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/device.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace asio_rdma {

/// An Asio I/O object that reports the asynchronous events of a device: ports that go up and down,
/// queue pairs and devices that fail. Queue pairs and receive queues process the events that
/// concern them by themselves; this object is for programs that also need the events. Each object
/// receives every event from its opening on; up to 64 events are kept for it while no wait is
/// pending.
template <class Executor = asio::any_io_executor>
class basic_device_events {
  using impl_type = detail::device_events_impl;

public:
  using executor_type = Executor;
  using native_handle_type = ibv_context*;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_device_events<Executor1>;
  };

  /// An object that is not open. It receives no events.
  explicit basic_device_events(const executor_type& ex) : io_(ex) {}
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  explicit basic_device_events(ExecutionContext& context) : io_(context.get_executor()) {}
  /// Opens: see `open`.
  template <class ExecutorOrContext>
  basic_device_events(ExecutorOrContext&& ex, const device& d)
      : basic_device_events(std::forward<ExecutorOrContext>(ex)) {
    open(d);
  }

  /// The moved-from object is closed.
  basic_device_events(basic_device_events&&) noexcept = default;
  template <class Executor1>
  requires std::convertible_to<Executor1, Executor>
  basic_device_events(basic_device_events<Executor1>&& other)
      : io_(executor_type(other.get_executor())), impl_(std::exchange(other.impl_, nullptr)) {}
  basic_device_events& operator=(basic_device_events&& other) {
    if (this != &other) {
      close();
      io_ = other.io_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  ~basic_device_events() { close(); }

  const executor_type& get_executor() const noexcept { return io_.get(); }

  /// Subscribes to the device's events. Errors: `already_open`, `bad_descriptor` for a device that
  /// is not open, or the system's if the events cannot be watched.
  void open(const device& d, error_code& ec) {
    detail::open_object(impl_, ec,
                        [&] { return detail::open_device_events(io_.context(), d, ec); });
  }
  void open(const device& d) {
    error_code ec;
    open(d, ec);
    detail::throw_if(ec, "device_events::open");
  }

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// The device's context.
  native_handle_type native_handle() const noexcept {
    return impl_ ? detail::native_handle(*impl_) : nullptr;
  }

  /// Ends every wait with `operation_aborted` and ends the subscription.
  void close() {
    if (impl_)
      detail::close(*std::exchange(impl_, nullptr));
  }
  /// Ends every wait with `operation_aborted`.
  void cancel() {
    if (impl_)
      detail::cancel(*impl_);
  }

  /// Waits for the next event and reports it. Errors: `bad_descriptor` if not open,
  /// `operation_aborted`. Cancellation: all types; a cancelled wait loses no event.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_event(Token&& token = {}) {
    return detail::begin_async<Token, void(error_code, device_event)>(
        detail::initiate_request<detail::operation, result, basic_device_events>{this}, token,
        detail::no_request());
  }

private:
  // For the conversion from an object with another executor.
  template <class>
  friend class basic_device_events;

  struct result {
    static std::tuple<device_event> arguments(const detail::operation& op) {
      return {detail::get_event(op)};
    }
  };

  // The initiation of an operation, which uses `impl_` and `io_`.
  template <class, class, class>
  friend struct detail::initiate_request;

  detail::io_executor<executor_type> io_;
  std::shared_ptr<impl_type> impl_;
};

using device_events = basic_device_events<>;

} // namespace asio_rdma
