// SPDX-License-Identifier: BSL-1.0
// The functions of `connection_impl` that templates call. They correspond to its members.
#pragma once

#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/detail/connection/connection_operations.hpp>
#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace asio_rdma::detail {
class completion_queue_impl;
class connection_impl;
class connection_target;
class shared_receives_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// Return null after an error.
std::shared_ptr<connection_impl> open_connection(asio::execution_context& context,
                                                 const memory_pool& pool,
                                                 const connection_options& options,
                                                 std::shared_ptr<completion_queue_impl> queue,
                                                 error_code& ec);
std::shared_ptr<connection_impl>
open_connection(asio::execution_context& context, const memory_pool& pool,
                const connection_options& options,
                const std::shared_ptr<shared_receives_impl>& shared, error_code& ec);
std::shared_ptr<connection_target> target_of(const std::shared_ptr<connection_impl>& impl);

ibv_qp* native_handle(const connection_impl& impl) noexcept;
const memory_pool& pool(const connection_impl& impl) noexcept;
const connection_options& options(const connection_impl& impl) noexcept;
connection_statistics statistics(const connection_impl& impl) noexcept;
link_latencies latencies(const connection_impl& impl) noexcept;
void measure_latency(connection_impl& impl);
void close(connection_impl& impl);
void cancel_receives(connection_impl& impl);
std::size_t revoke(connection_impl& impl, const registered_buffer* memory);

bool start(connection_impl& impl, message_send& op, const payload& p,
           std::optional<std::uint32_t> immediate);
bool start(connection_impl& impl, message_receive& op);
bool start(connection_impl& impl, remote_operation& op, std::span<const remote_work> chain);
bool start(connection_impl& impl, region_operation& op);
bool start(connection_impl& impl, region_operation& op, const registered_buffer& memory);
/// Revokes the peer's access to `memory`, or to all memory if null.
bool start_revoke(connection_impl& impl, region_operation& op, const registered_buffer* memory,
                  std::chrono::microseconds grace);
bool start_close(connection_impl& impl, operation& op);
/// Starts an operation that completes when the connection ends.
bool start_wait(connection_impl& impl, operation& op);
void cancel(connection_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(connection_impl& impl) noexcept;

// The names that handler tracking shows.
inline const char* object_name(const connection_impl*) noexcept { return "connection"; }
inline const char* operation_name(const connection_impl*, const message_send&) noexcept {
  return "async_send";
}
inline const char* operation_name(const connection_impl*, const message_receive& op) noexcept {
  return op.request.what == message_in::kind::written ? "async_receive_immediate" : "async_receive";
}
inline const char* operation_name(const connection_impl*, const region_operation& op) noexcept {
  switch (op.why) {
  case region_operation::purpose::request:
    return "async_request_memory";
  case region_operation::purpose::renew:
    return "async_renew";
  case region_operation::purpose::receive:
    return "async_receive_region";
  default:
    return "async_send_region";
  }
}

} // namespace asio_rdma::detail
#pragma GCC visibility pop
