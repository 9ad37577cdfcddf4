// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/device_events_impl.hpp>
#include <asio_rdma/detail/initiate.hpp>
#include <asio_rdma/device.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <memory>
#include <utility>

namespace asio_rdma {

/// The asynchronous events of a device, as an Asio I/O object: ports that go up and down, queue
/// pairs and devices that fail. Queue pairs and receive queues take what concerns them by
/// themselves; this is for programs that want to know too. Each object hears of every event from
/// its construction on; up to 64 are kept for it while it does not wait.
template <class Executor = asio::any_io_executor>
class basic_device_events {
  using impl_type = detail::device_events_impl;

public:
  using executor_type = Executor;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_device_events<Executor1>;
  };

  /// Errors (thrown): the system's, when the device's events cannot be watched.
  basic_device_events(const executor_type& ex, const device& d)
      : executor_(ex),
        impl_(std::make_shared<impl_type>(asio::query(ex, asio::execution::context), d)) {
    detail::throw_if(impl_->open(), "device_events");
  }
  template <class ExecutionContext>
  requires std::convertible_to<ExecutionContext&, asio::execution_context&>
  basic_device_events(ExecutionContext& context, const device& d)
      : basic_device_events(executor_type(context.get_executor()), d) {}

  basic_device_events(basic_device_events&&) noexcept = default;
  basic_device_events& operator=(basic_device_events&& other) {
    if (this != &other) {
      close();
      executor_ = other.executor_;
      impl_ = std::exchange(other.impl_, nullptr);
    }
    return *this;
  }
  ~basic_device_events() { close(); }

  const executor_type& get_executor() const noexcept { return executor_; }
  bool is_open() const noexcept { return impl_ != nullptr; }

  /// Ends every wait with `operation_aborted` and hears of no more events.
  void close() {
    if (impl_)
      std::exchange(impl_, nullptr)->close();
  }
  /// Ends every wait with `operation_aborted`.
  void cancel() {
    if (impl_)
      impl_->cancel();
  }

  /// Gives the next event. Supports all cancellation types; a cancelled wait loses no event.
  template <class Token = asio::default_completion_token_t<executor_type>>
  auto async_wait_event(Token&& token = {}) {
    return asio::async_initiate<Token, void(error_code, device_event)>(initiate_wait{this}, token);
  }

private:
  struct result {
    static std::tuple<device_event> arguments(const detail::operation& op) {
      return {detail::get_event(op)};
    }
  };

  struct initiate_wait {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return self->executor_; }

    template <class Handler>
    void operator()(Handler&& handler) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      detail::start_operation<detail::operation, result, 0>(
          self->impl_, self->executor_, h, [](auto&) { return error_code(); },
          [](impl_type& i, auto& op) { return i.start(op); });
    }

    basic_device_events* self;
  };

  executor_type executor_;
  std::shared_ptr<impl_type> impl_;
};

using device_events = basic_device_events<>;

} // namespace asio_rdma
