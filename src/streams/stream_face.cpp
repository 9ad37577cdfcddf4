// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/streams/stream_face.hpp>

#include "streams/stream_impl.hpp"

#include <utility>

namespace asio_rdma::detail {

std::shared_ptr<stream_impl> open_stream(const asio::any_io_executor& ex, const memory_pool& pool,
                                         const stream_options& options,
                                         std::shared_ptr<completion_queue_impl> queue,
                                         error_code& ec) {
  return make_open<stream_impl>(
      ec, [&](stream_impl& i) { return i.open(std::move(queue)); }, ex, pool, options);
}

std::shared_ptr<stream_impl> open_stream(const asio::any_io_executor& ex, const memory_pool& pool,
                                         const stream_options& options,
                                         const std::shared_ptr<shared_receives_impl>& shared,
                                         error_code& ec) {
  return make_open<stream_impl>(
      ec, [&](stream_impl& i) { return i.open(shared); }, ex, pool, options);
}

std::shared_ptr<connection_target> target_of(const std::shared_ptr<stream_impl>& impl) {
  return impl;
}

ibv_qp* native_handle(const stream_impl& impl) noexcept {
  return impl.link().queue_pair()->native_handle();
}
const memory_pool& pool(const stream_impl& impl) noexcept { return impl.link().pool(); }
const stream_options& options(const stream_impl& impl) noexcept { return impl.options(); }
stream_statistics statistics(const stream_impl& impl) noexcept { return impl.link().statistics(); }
link_latencies latencies(const stream_impl& impl) noexcept { return impl.link().latencies(); }
void measure_latency(stream_impl& impl) { impl.link().measure_latency(); }
std::size_t available(stream_impl& impl) { return impl.available(); }
error_code shutdown(stream_impl& impl, asio::socket_base::shutdown_type what) {
  return impl.shutdown(what);
}
error_code endpoint(const stream_impl& impl, asio::ip::tcp::endpoint& result, bool remote) {
  return impl.endpoint(result, remote);
}
bool non_blocking(const stream_impl& impl) noexcept { return impl.non_blocking; }
void set_non_blocking(stream_impl& impl, bool on) noexcept { impl.non_blocking = on; }
bool no_delay(const stream_impl& impl) { return impl.no_delay(); }
void set_no_delay(stream_impl& impl, bool on) { impl.set_no_delay(on); }
asio::socket_base::linger linger(const stream_impl& impl) { return impl.linger(); }
void set_linger(stream_impl& impl, const asio::socket_base::linger& option) {
  impl.set_linger(option);
}
void close(stream_impl& impl) { impl.close(); }
void cancel(stream_impl& impl) { impl.cancel(); }

bool start(stream_impl& impl, stream_reading& op) { return impl.start(op); }
bool start(stream_impl& impl, stream_writing& op) { return impl.start(op); }
bool start(stream_impl& impl, stream_error_wait& op) { return impl.start(op); }
void run_here(stream_impl& impl, stream_reading& op, bool wait) { impl.run_here(op, wait); }
void run_here(stream_impl& impl, stream_writing& op, bool wait) { impl.run_here(op, wait); }
void run_here(stream_impl& impl, stream_error_wait& op, bool wait) { impl.run_here(op, wait); }
void cancel(stream_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(stream_impl& impl) noexcept { return impl.link().next_id(); }

} // namespace asio_rdma::detail
