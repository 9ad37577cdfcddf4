// SPDX-License-Identifier: BSL-1.0
// The functions of `stream_impl` that templates call. They correspond to its members.
#pragma once

#include <asio_rdma/detail/streams/stream_operations.hpp>
#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/stream_options.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace asio_rdma::detail {
class completion_queue_impl;
class connection_target;
class shared_receives_impl;
class stream_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// Return null after an error.
std::shared_ptr<stream_impl> open_stream(const asio::any_io_executor& ex, const memory_pool& pool,
                                         const stream_options& options,
                                         std::shared_ptr<completion_queue_impl> queue,
                                         error_code& ec);
std::shared_ptr<stream_impl> open_stream(const asio::any_io_executor& ex, const memory_pool& pool,
                                         const stream_options& options,
                                         const std::shared_ptr<shared_receives_impl>& shared,
                                         error_code& ec);
std::shared_ptr<connection_target> target_of(const std::shared_ptr<stream_impl>& impl);

ibv_qp* native_handle(const stream_impl& impl) noexcept;
const memory_pool& pool(const stream_impl& impl) noexcept;
const stream_options& options(const stream_impl& impl) noexcept;
stream_statistics statistics(const stream_impl& impl) noexcept;
link_latencies latencies(const stream_impl& impl) noexcept;
void measure_latency(stream_impl& impl);
std::size_t available(stream_impl& impl);
error_code shutdown(stream_impl& impl, asio::socket_base::shutdown_type what);
error_code endpoint(const stream_impl& impl, asio::ip::tcp::endpoint& result, bool remote);
bool non_blocking(const stream_impl& impl) noexcept;
void set_non_blocking(stream_impl& impl, bool on) noexcept;
bool no_delay(const stream_impl& impl);
void set_no_delay(stream_impl& impl, bool on);
asio::socket_base::linger linger(const stream_impl& impl);
void set_linger(stream_impl& impl, const asio::socket_base::linger& option);
void close(stream_impl& impl);
void cancel(stream_impl& impl);

bool start(stream_impl& impl, stream_reading& op);
bool start(stream_impl& impl, stream_writing& op);
bool start(stream_impl& impl, stream_error_wait& op);
void run_here(stream_impl& impl, stream_reading& op, bool wait);
void run_here(stream_impl& impl, stream_writing& op, bool wait);
void run_here(stream_impl& impl, stream_error_wait& op, bool wait);
void cancel(stream_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(stream_impl& impl) noexcept;

// The names that handler tracking shows.
inline const char* object_name(const stream_impl*) noexcept { return "stream"; }
inline const char* operation_name(const stream_impl*, const stream_reading& op) noexcept {
  if (op.request.what == stream_read::kind::wait)
    return "async_wait";
  return op.request.what == stream_read::kind::piece ? "async_receive" : "async_read_some";
}
inline const char* operation_name(const stream_impl*, const stream_writing& op) noexcept {
  return op.request.what == stream_write::kind::wait ? "async_wait" : "async_write_some";
}
inline const char* operation_name(const stream_impl*, const stream_error_wait&) noexcept {
  return "async_wait";
}

} // namespace asio_rdma::detail
#pragma GCC visibility pop
