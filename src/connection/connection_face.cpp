// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/connection/connection_face.hpp>
#include <asio_rdma/detail/core/open_impl.hpp>

#include "connection/connection_impl.hpp"

#include <utility>

namespace asio_rdma::detail {

std::shared_ptr<connection_impl> open_connection(asio::execution_context& context,
                                                 const memory_pool& pool,
                                                 const connection_options& options,
                                                 std::shared_ptr<completion_queue_impl> queue,
                                                 error_code& ec) {
  return make_open<connection_impl>(
      ec, [&](connection_impl& i) { return i.open(std::move(queue)); }, context, pool, options);
}

std::shared_ptr<connection_impl>
open_connection(asio::execution_context& context, const memory_pool& pool,
                const connection_options& options,
                const std::shared_ptr<shared_receives_impl>& shared, error_code& ec) {
  return make_open<connection_impl>(
      ec, [&](connection_impl& i) { return i.open(shared); }, context, pool, options);
}

std::shared_ptr<connection_target> target_of(const std::shared_ptr<connection_impl>& impl) {
  return impl;
}

ibv_qp* native_handle(const connection_impl& impl) noexcept {
  return impl.link().queue_pair()->native_handle();
}
const memory_pool& pool(const connection_impl& impl) noexcept { return impl.link().pool(); }
const connection_options& options(const connection_impl& impl) noexcept { return impl.options(); }
connection_statistics statistics(const connection_impl& impl) noexcept { return impl.counters(); }
link_latencies latencies(const connection_impl& impl) noexcept { return impl.link().latencies(); }
void measure_latency(connection_impl& impl) { impl.link().measure_latency(); }
void close(connection_impl& impl) { impl.close(); }
void cancel_receives(connection_impl& impl) { impl.cancel_receives(); }
std::size_t revoke(connection_impl& impl, const registered_buffer* memory) {
  return impl.revoke(memory);
}

bool start(connection_impl& impl, message_send& op, const payload& p,
           std::optional<std::uint32_t> immediate) {
  return impl.start(op, p, immediate);
}
bool start(connection_impl& impl, message_receive& op) { return impl.start(op); }
bool start(connection_impl& impl, remote_operation& op, std::span<const remote_work> chain) {
  return impl.start(op, chain);
}
bool start(connection_impl& impl, region_operation& op) { return impl.start(op); }
bool start(connection_impl& impl, region_operation& op, const registered_buffer& memory) {
  return impl.start(op, memory);
}
bool start_revoke(connection_impl& impl, region_operation& op, const registered_buffer* memory,
                  std::chrono::microseconds grace) {
  return impl.start_revoke(op, memory, grace);
}
bool start_close(connection_impl& impl, operation& op) { return impl.link().start_close(op); }
bool start_wait(connection_impl& impl, operation& op) { return impl.link().start_wait(op); }
void cancel(connection_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(connection_impl& impl) noexcept { return impl.link().next_id(); }

} // namespace asio_rdma::detail
