// SPDX-License-Identifier: BSL-1.0
// The functions of `queue_pair_impl` that templates call. Functions with the name of a member
// correspond to it.
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/verbs/flush.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair_options.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>

#include <cstdint>
#include <memory>

struct rdma_cm_id;

namespace asio_rdma::detail {
class completion_queue_impl;
class queue_pair_impl;
class shared_receive_queue_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// Return null after an error.
std::shared_ptr<queue_pair_impl>
open_queue_pair(asio::execution_context& context, const protection_domain& pd,
                const queue_pair_options& options, std::shared_ptr<completion_queue_impl> queue,
                std::shared_ptr<shared_receive_queue_impl> receives, error_code& ec);
std::shared_ptr<queue_pair_impl>
adopt_queue_pair(asio::execution_context& context, const protection_domain& pd,
                 std::shared_ptr<completion_queue_impl> queue,
                 std::shared_ptr<shared_receive_queue_impl> receives, ibv_qp* qp, error_code& ec);

/// Defined in the folder `connecting`.
std::shared_ptr<queue_pair_impl>
adopt_connected(asio::execution_context& context, const asio::any_io_executor& executor,
                rdma_cm_id* id, const protection_domain& pd,
                std::shared_ptr<completion_queue_impl> queue,
                std::shared_ptr<shared_receive_queue_impl> receives, error_code& ec);

queue_pair_state state(const queue_pair_impl& impl);
ibv_qp* native_handle(const queue_pair_impl& impl) noexcept;
const queue_pair_options& options(const queue_pair_impl& impl) noexcept;
const protection_domain& get_protection_domain(const queue_pair_impl& impl) noexcept;
error_code query(const queue_pair_impl& impl, ibv_qp_attr& attr, int mask);
std::uint32_t vendor_error(const queue_pair_impl& impl);
error_code local_address(const queue_pair_impl& impl, queue_pair_address& result);
error_code connect(queue_pair_impl& impl, const queue_pair_address& peer);
void set_connected(queue_pair_impl& impl);
void close(queue_pair_impl& impl);
void cancel(queue_pair_impl& impl);

/// Return true, or false with the error in the operation, which then stays the caller's. A plain
/// `operation` completes when the queue pair fails or is closed.
bool start(queue_pair_impl& impl, send_operation& op);
bool start(queue_pair_impl& impl, checked_operation& op);
bool start(queue_pair_impl& impl, bind_operation& op);
bool start(queue_pair_impl& impl, receive_operation& op);
bool start(queue_pair_impl& impl, operation& op);
void hold(queue_pair_impl& impl);
void release(queue_pair_impl& impl);
void cancel(queue_pair_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(queue_pair_impl& impl) noexcept;

// The names that handler tracking shows.
inline const char* object_name(const queue_pair_impl*) noexcept { return "queue_pair"; }
inline const char* operation_name(const queue_pair_impl*, const send_operation& op) noexcept {
  if (op.wr.opcode == flush_opcode)
    return "async_flush";
  switch (op.wr.opcode) {
  case IBV_WR_SEND:
    return "async_send";
  case IBV_WR_SEND_WITH_IMM:
    return "async_send_immediate";
  case IBV_WR_SEND_WITH_INV:
    return "async_send_invalidate";
  case IBV_WR_RDMA_WRITE:
    return "async_write";
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return "async_write_immediate";
  case IBV_WR_RDMA_READ:
    return "async_read";
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return "async_compare_and_swap";
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return "async_fetch_add";
  case IBV_WR_BIND_MW:
    return "async_bind";
  default:
    return "async_invalidate";
  }
}
inline const char* operation_name(const queue_pair_impl*, const receive_operation&) noexcept {
  return "async_receive";
}
inline const char* operation_name(const queue_pair_impl*, const operation&) noexcept {
  return "async_wait_disconnect";
}

} // namespace asio_rdma::detail
#pragma GCC visibility pop
