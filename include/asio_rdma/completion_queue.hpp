// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/device.hpp>
#include <boost/asio/execution_context.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace asio_rdma::detail {
class completion_queue_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

/// How a completion queue awaits completions.
enum class completion_mode {
  event,    ///< Sleeps in the execution context until the device raises an event.
  adaptive, ///< After work, polls for a while (`spin`), then as `event`.
  busy,     ///< Polls as long as an operation is outstanding; never sleeps. For `io_context::run`:
            ///< `io_context::poll` does not return as long.
  manual    ///< Only `completion_queue::poll()` polls.
};

struct completion_queue_options {
  completion_mode mode = completion_mode::event;
  std::uint32_t entries = 4096;       ///< At least; limited by the device (max_cqe).
  std::chrono::microseconds spin{50}; ///< Mode `adaptive`: how long to poll without a completion.
  /// The completion vector, from 0 to `ibv_context::num_comp_vectors` - 1; of an adapter each is
  /// usually served by one CPU. Empty: the queues of an opened device take the vectors in turn, the
  /// first of them by the number of the CPU on which the device was opened. Another number is
  /// refused with `invalid_argument` (ibv_create_cq(3)).
  std::optional<int> completion_vector = std::nullopt;

  /// Each sets the member of its name and returns the options:
  /// `completion_queue_options().set_mode(…)`. Calls can be chained.
  ///@{
  completion_queue_options& set_mode(completion_mode value) {
    return detail::set(*this, mode, value);
  }
  completion_queue_options& set_entries(std::uint32_t value) {
    return detail::set(*this, entries, value);
  }
  completion_queue_options& set_spin(std::chrono::microseconds value) {
    return detail::set(*this, spin, value);
  }
  completion_queue_options& set_completion_vector(std::optional<int> value) {
    return detail::set(*this, completion_vector, value);
  }
  ///@}
};

/// Counters of a completion queue.
struct completion_counters {
  std::uint64_t polls = 0;       ///< Calls of ibv_poll_cq.
  std::uint64_t arms = 0;        ///< Calls of ibv_req_notify_cq.
  std::uint64_t events = 0;      ///< Events read from the completion channel.
  std::uint64_t completions = 0; ///< Work completions polled.
};

/// A completion queue of an execution context and a device (ibv_create_cq(3)), for as many queue
/// pairs as it has room for. A queue pair that is opened without one uses a shared one, so most
/// programs need this class only to choose a mode. A cheap, shared handle, safe from any thread:
/// the queue lives while a queue pair uses it.
///
/// The handlers of one completion queue begin in the order in which their operations completed. If
/// several threads run the context, handlers run on all of them at the same time, as those of
/// Asio's own objects do. On a context with the concurrency hint 1 the completion queue calls many
/// handlers in a row, as one handler of the context; after `stop`, at most 31 more.
class completion_queue {
public:
  using native_handle_type = ibv_cq*;

  completion_queue() noexcept = default;

  /// Errors: `bad_descriptor` for a device that is not open, or the system's (`no_buffer_space` and
  /// the like), when the queue or its channel cannot be made.
  completion_queue(asio::execution_context& context, const device& d,
                   const completion_queue_options& options, error_code& ec);
  completion_queue(asio::execution_context& context, const device& d,
                   const completion_queue_options& options = {});

  /// Adopts a queue of the device's context that has no events outstanding. Its completion channel
  /// has the same owner as the queue, must not serve another queue, and becomes nonblocking. A
  /// queue without a channel is polled (modes `busy` and `manual`). Only operations of this library
  /// may use the queue. Errors: `bad_descriptor` for a device that is not open, `invalid_argument`
  /// for null, `error::wrong_device`, or the system's.
  completion_queue(asio::execution_context& context, const device& d, native_handle_type cq,
                   ownership owns, const completion_queue_options& options, error_code& ec);
  completion_queue(asio::execution_context& context, const device& d, native_handle_type cq,
                   ownership owns, const completion_queue_options& options = {});

  bool is_open() const noexcept { return impl_ != nullptr; }
  /// Null when not open.
  native_handle_type native_handle() const noexcept;
  /// The mode in force. This function and those below, including `poll`, need an open queue.
  completion_mode mode() const noexcept;
  std::uint32_t entries() const noexcept;
  completion_counters counters() const noexcept;

  /// Mode `manual`: polls completions and runs their handlers by `dispatch` on their executors. A
  /// queue pair that has failed without a completion fails here, too, after the device's event.
  /// Returns the number of completed operations. Must not be called by two threads at a time. In
  /// other modes, in which the context polls, it does nothing and returns 0.
  std::size_t poll();

  /// The options of the shared queues that the context makes from now on.
  static void set_default_options(asio::execution_context& context,
                                  const completion_queue_options& options);

  const std::shared_ptr<detail::completion_queue_impl>& impl() const noexcept { return impl_; }

private:
  std::shared_ptr<detail::completion_queue_impl> impl_;
};

} // namespace asio_rdma
#pragma GCC visibility pop
