// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/global/global_face.hpp>

#include "global/global_memory_impl.hpp"
#include "global/global_node.hpp"

namespace asio_rdma::detail {

std::shared_ptr<global_node> make_node(const memory_pool& pool, node_id id) {
  return std::make_shared<global_node>(pool, id);
}
node_id id_of(const global_node& node) noexcept { return node.id(); }
error_code host(global_node& node, std::uint64_t bytes, segment_id& given) {
  return node.host(bytes, given);
}
void* local(const global_node& node, remote_word p, std::uint64_t bytes,
            std::uint64_t alignment) noexcept {
  return node.local(p, bytes, alignment);
}

std::shared_ptr<global_memory_impl> open_memory(const asio::any_io_executor& executor,
                                                const std::shared_ptr<global_node>& node,
                                                const global_memory_options& options,
                                                error_code& ec) {
  return global_memory_impl::open(executor, node, options, ec);
}
asio::execution_context& context_of(const global_memory_impl& impl) noexcept {
  return impl.service().context();
}
void close(global_memory_impl& impl) { impl.close(); }
error_code listen(global_memory_impl& impl, const asio::ip::tcp::endpoint& endpoint,
                  const accept_options& options) {
  return impl.listen(endpoint, options);
}
asio::ip::tcp::endpoint local_endpoint(const global_memory_impl& impl, error_code& ec) {
  return impl.local_endpoint(ec);
}
bool knows(const global_memory_impl& impl, node_id node) noexcept { return impl.knows(node); }
ibv_atomic_cap atomics_of(const global_memory_impl& impl, node_id node) noexcept {
  return impl.atomics(node);
}
std::shared_ptr<lane_link> find(const global_memory_impl& impl, const global_aim& aim,
                                remote_buffer& target, error_code& ec) noexcept {
  return impl.find(aim, target, ec);
}
bool start(global_memory_impl& impl, global_request& op, node_id to) { return impl.start(op, to); }
void cancel(global_memory_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(global_memory_impl& impl) noexcept { return impl.next_id(); }

} // namespace asio_rdma::detail
