// SPDX-License-Identifier: BSL-1.0
// The functions of `shared_receive_queue_impl` that templates call. Functions with the name of a
// member correspond to it.
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/memory_region.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>

#include <cstdint>
#include <memory>

namespace asio_rdma::detail {
class completion_queue_impl;
class shared_receive_queue_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {
struct shared_receive_queue_options;
} // namespace asio_rdma

namespace asio_rdma::detail {

/// Return null after an error.
std::shared_ptr<shared_receive_queue_impl>
open_shared_receive_queue(asio::execution_context& context, const protection_domain& pd,
                          const shared_receive_queue_options& options,
                          std::shared_ptr<completion_queue_impl> queue, error_code& ec);
std::shared_ptr<shared_receive_queue_impl>
adopt_shared_receive_queue(asio::execution_context& context, const protection_domain& pd,
                           const shared_receive_queue_options& options,
                           std::shared_ptr<completion_queue_impl> queue, ibv_srq* srq,
                           error_code& ec);

ibv_srq* native_handle(const shared_receive_queue_impl& impl) noexcept;
void close(shared_receive_queue_impl& impl);
void cancel(shared_receive_queue_impl& impl);
bool start(shared_receive_queue_impl& impl, receive_operation& op);
bool start_wait_limit(shared_receive_queue_impl& impl, operation& op, std::uint32_t limit);
void cancel(shared_receive_queue_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(shared_receive_queue_impl& impl) noexcept;

// The names that handler tracking shows.
inline const char* object_name(const shared_receive_queue_impl*) noexcept {
  return "shared_receive_queue"; // Boost.Asio shows 20 characters
}
inline const char* operation_name(const shared_receive_queue_impl*,
                                  const receive_operation&) noexcept {
  return "async_receive";
}
inline const char* operation_name(const shared_receive_queue_impl*, const operation&) noexcept {
  return "async_wait_limit";
}

} // namespace asio_rdma::detail
#pragma GCC visibility pop
