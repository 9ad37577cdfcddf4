// SPDX-License-Identifier: BSL-1.0
// The lanes and requests of a global memory, and the functions of `global_memory_impl` and of
// `global_node` that templates call. The functions correspond to their members.
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/global/global_message.hpp>
#include <asio_rdma/detail/global/in_flight.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace asio_rdma::detail {
class global_memory_impl;
class global_node;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {
struct global_memory_options;
} // namespace asio_rdma

namespace asio_rdma::detail {

/// The target of an operation, and its requirements.
struct global_aim {
  remote_word at;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
  bool atomic = false;
};

/// A wait for another node to be joined or to answer.
class global_request : public operation {
public:
  using operation::operation;

  global_message message; ///< The request; then the answer. After a join it contains the node's id.
  asio::ip::tcp::endpoint endpoint; ///< The endpoint of a join.
  connect_options how;              ///< Of a join.
  std::uint32_t number = 0;         ///< Identifies the request to the peer; 0 for a join.
  bool is_join() const noexcept { return message.what == global_message::kind::join; }
};

std::shared_ptr<global_node> make_node(const memory_pool& pool, node_id id);
node_id id_of(const global_node& node) noexcept;
error_code host(global_node& node, std::uint64_t bytes, segment_id& given);
void* local(const global_node& node, remote_word p, std::uint64_t bytes,
            std::uint64_t alignment) noexcept;

/// Returns null after an error.
std::shared_ptr<global_memory_impl> open_memory(const asio::any_io_executor& executor,
                                                const std::shared_ptr<global_node>& node,
                                                const global_memory_options& options,
                                                error_code& ec);
/// The context that completes the operations.
asio::execution_context& context_of(const global_memory_impl& impl) noexcept;
void close(global_memory_impl& impl);
error_code listen(global_memory_impl& impl, const asio::ip::tcp::endpoint& endpoint,
                  const accept_options& options);
asio::ip::tcp::endpoint local_endpoint(const global_memory_impl& impl, error_code& ec);
bool knows(const global_memory_impl& impl, node_id node) noexcept;
ibv_atomic_cap atomics_of(const global_memory_impl& impl, node_id node) noexcept;
std::shared_ptr<lane_link> find(const global_memory_impl& impl, const global_aim& aim,
                                remote_buffer& target, error_code& ec) noexcept;
bool start(global_memory_impl& impl, global_request& op, node_id to);
void cancel(global_memory_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(global_memory_impl& impl) noexcept;

} // namespace asio_rdma::detail
#pragma GCC visibility pop
