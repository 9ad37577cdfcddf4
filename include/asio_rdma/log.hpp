// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/error.hpp>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#pragma GCC visibility push(default)
namespace asio_rdma {

/// How serious a logged event is, in this order.
enum class log_severity : std::uint8_t {
  debug,   ///< A detail of a normal course, such as a repeated step.
  info,    ///< A normal event: a connection begins or is closed.
  warning, ///< An event that the program can survive: a refusal, a long wait, a lost peer.
  error    ///< A work request or a device has failed.
};

/// The kind of a logged event.
enum class log_event : std::uint8_t {
  open,    ///< A queue pair was made. `debug`: the device has refused larger limits before.
  connect, ///< An attempt of a connector has ended, or continues after a failed step.
  accept,  ///< The acceptance of a request has ended.
  refuse,  ///< An acceptor has refused a request.
  end,     ///< A connection or a stream has ended.
  failure, ///< A work request or a queue pair has failed.
  device,  ///< The device has reported an asynchronous event.
  memory,  ///< A memory pool could not grow.
  wait     ///< Data waits long for the peer, or such a wait has ended.
};

/// One logged event. The object and its text exist during the call of the log function only.
struct log_record {
  log_severity severity = log_severity::info;
  log_event event = log_event::end;
  /// One line without a line end, which ends with the message of `error`, if there is one.
  std::string_view text;
  error_code error;             ///< The reason, if there is one.
  std::uint32_t queue_pair = 0; ///< The number of the queue pair; 0 if there is none.
  /// Of the work request that has failed; otherwise `IBV_WC_SUCCESS` and 0 (ibv_poll_cq(3)).
  ///@{
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::uint32_t vendor_error = 0;
  ///@}
};

using log_function = std::function<void(const log_record&)>;

struct log_options {
  /// Events of a lower severity are not reported.
  log_severity least = log_severity::info;
  /// A wait of data for the peer that lasts longer is reported, while it lasts and at its end.
  std::chrono::milliseconds long_wait{1000};

  /// Each sets the member of its name and returns the options. Calls can be chained.
  ///@{
  log_options& set_least(log_severity value) { return detail::set(*this, least, value); }
  log_options& set_long_wait(std::chrono::milliseconds value) {
    return detail::set(*this, long_wait, value);
  }
  ///@}
};

/// Sets the function that is called for the events of the whole process, or none. When this
/// function returns, no thread calls the former function any more. Without a function, which is the
/// default, an event costs the load of one byte; no event is on the path of an operation that
/// succeeds.
///
/// The log function may be called by any thread, and by several at a time. The caller may hold
/// locks of the library. So the log function should only record the event. It must not call
/// functions of this library, destroy objects of it, or wait for another thread that does so.
/// Events that occur on the same thread during a call are not reported. An exception of the log
/// function is dropped.
///
/// Throws `std::bad_alloc`, and `std::logic_error` if the log function calls it. Thread-safe.
void set_log(log_function f, const log_options& options = {});

/// The names of the enumerators.
///@{
const char* to_string(log_severity s) noexcept;
const char* to_string(log_event e) noexcept;
///@}

} // namespace asio_rdma
#pragma GCC visibility pop
