// SPDX-License-Identifier: BSL-1.0
// The functions of `device_events_impl` that templates call. Functions with the name of a member
// correspond to it.
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/device_event.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>

#include <cstdint>
#include <memory>

namespace asio_rdma::detail {
class device_events_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// Returns null after an error.
std::shared_ptr<device_events_impl> open_device_events(asio::execution_context& context,
                                                       const device& d, error_code& ec);
ibv_context* native_handle(const device_events_impl& impl) noexcept;
void close(device_events_impl& impl);
void cancel(device_events_impl& impl);
bool start(device_events_impl& impl, operation& op);
void cancel(device_events_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(device_events_impl& impl) noexcept;

// The names that handler tracking shows.
inline const char* object_name(const device_events_impl*) noexcept { return "device_events"; }
inline const char* operation_name(const device_events_impl*, const operation&) noexcept {
  return "async_wait_event";
}

/// The event that is stored in the result of an operation.
device_event get_event(const operation& op) noexcept;

} // namespace asio_rdma::detail
#pragma GCC visibility pop
