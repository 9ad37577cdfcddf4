// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connectable.hpp>
#include <asio_rdma/detail/connecting/connecting_face.hpp>

#include "connecting/acceptor_impl.hpp"
#include "connecting/cm_device.hpp"
#include "connecting/connection_target.hpp"
#include "connecting/connector_impl.hpp"

#include <cstdlib>
#include <sstream>
#include <utility>

namespace asio_rdma {
namespace detail {

void throw_if(const error_code& ec, const char* what, const asio::ip::tcp::endpoint& where) {
  if (!ec)
    return;
  std::ostringstream text;
  text << where;
  throw_error(ec, what, text.str());
}

std::shared_ptr<acceptor_impl> open_acceptor(asio::execution_context& context,
                                             const asio::any_io_executor& executor,
                                             const asio::ip::tcp::endpoint& endpoint,
                                             const acceptor_options& options, error_code& ec) {
  const auto open = [&](acceptor_impl& i) {
    const error_code failure = i.open(endpoint, options);
    if (failure)
      i.close();
    return failure;
  };
  return make_open<acceptor_impl>(ec, open, cm_service::of(context), executor);
}

std::shared_ptr<acceptor_impl> adopt_acceptor(asio::execution_context& context,
                                              const asio::any_io_executor& executor, rdma_cm_id* id,
                                              const acceptor_options& options, error_code& ec) {
  return make_open<acceptor_impl>(
      ec, [&](acceptor_impl& i) { return i.adopt(id, options); }, cm_service::of(context),
      executor);
}

std::shared_ptr<queue_pair_impl>
adopt_connected(asio::execution_context& context, const asio::any_io_executor& executor,
                rdma_cm_id* id, const protection_domain& pd,
                std::shared_ptr<completion_queue_impl> queue,
                std::shared_ptr<shared_receive_queue_impl> receives, error_code& ec) {
  ec.clear();
  if (id == nullptr || id->qp == nullptr) {
    ec = asio::error::invalid_argument;
    return nullptr;
  }
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (const int e = ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init))
    ec = system_error_code(std::abs(e));
  else if (attr.qp_state != IBV_QPS_RTS && !is_iwarp(id->qp->context)) // siw does not report it
    ec = asio::error::not_connected;
  if (ec)
    return nullptr;
  return cm_connection::adopt(
      cm_service::of(context), executor, id,
      [&](error_code& failure) {
        return adopt_queue_pair(context, pd, queue, receives, id->qp, failure);
      },
      ec);
}

rdma_cm_id* native_handle(const acceptor_impl& impl) { return impl.native_handle(); }
asio::ip::tcp::endpoint local_endpoint(const acceptor_impl& impl) { return impl.local_endpoint(); }
acceptor_statistics statistics(const acceptor_impl& impl) { return impl.statistics(); }
bool start(acceptor_impl& impl, accept_operation& op) { return impl.start(op); }
void cancel(acceptor_impl& impl) { impl.cancel(); }
void cancel(acceptor_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
void close(acceptor_impl& impl) { impl.close(); }
std::uint64_t next_id_of(acceptor_impl& impl) noexcept { return impl.next_id(); }
std::uint64_t cancels(const acceptor_impl& impl) { return impl.cancels(); }
bool is_of_connector(const acceptor_impl& impl, const error_code& ec) {
  return impl.is_of_connector(ec);
}

std::shared_ptr<connector_impl> make_connector(asio::execution_context& context,
                                               const asio::any_io_executor& executor) {
  return std::make_shared<connector_impl>(cm_service::of(context), executor);
}
bool start(connector_impl& impl, connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
           const std::vector<asio::ip::tcp::endpoint>& endpoints, const connect_options& options) {
  return impl.start(op, qp, endpoints, options);
}
void cancel(connector_impl& impl) { impl.cancel(); }
void cancel(connector_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(connector_impl& impl) noexcept { return impl.next_id(); }

const asio::execution_context& context_of(const cm_connection& request) noexcept {
  return request.context();
}
bool start(cm_connection& request, connect_operation& op,
           const std::shared_ptr<queue_pair_impl>& qp, const accept_options& options) {
  error_code ec;
  const cm_home home = cm_connection::home_of(*qp, ec);
  if (!ec && options.admit) // it would not be called
    ec = asio::error::invalid_argument;
  if (!ec)
    ec = request.accept(op, qp, home, options, false);
  if (ec) // otherwise the operation may have completed already
    op.ec = ec;
  return !ec;
}
void cancel(cm_connection& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(cm_connection& impl) noexcept { return impl.next_id(); }

const std::shared_ptr<queue_pair_impl>& queue_pair_of(const connection_target& target) noexcept {
  return target.target_queue_pair();
}

} // namespace detail

rdma_cm_id* connection_request::native_handle() const {
  return connection_ ? connection_->native_handle() : nullptr;
}

connection_info connection_request::info() const {
  return connection_ ? connection_->info() : connection_info();
}

std::string connection_request::device_name() const {
  return connection_ ? connection_->device_name() : std::string();
}

void connection_request::reject(const private_data& data, error_code& ec) {
  ec = connection_ ? connection_->reject(data) : error_code(asio::error::bad_descriptor);
  drop();
}

void connection_request::drop() noexcept {
  if (connection_)
    std::exchange(connection_, nullptr)->give_up(asio::error::operation_aborted);
}

} // namespace asio_rdma
