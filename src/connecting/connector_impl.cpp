// SPDX-License-Identifier: BSL-1.0
#include "connecting/connector_impl.hpp"

namespace asio_rdma::detail {

bool connector_impl::start(connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
                           const std::vector<asio::ip::tcp::endpoint>& endpoints,
                           const connect_options& options) {
  const auto connection = std::make_shared<cm_connection>(service_, executor_);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(attempts_, [](const attempt& a) { return a.connection.expired(); });
    attempts_.push_back({op.id, connection});
  }
  const error_code ec = connection->connect(op, qp, endpoints, options);
  if (ec) // on success the operation may have completed already
    op.ec = ec;
  return !ec;
}

void connector_impl::cancel() {
  std::vector<attempt> cancelled; // they end here and are no longer tracked
  {
    const std::lock_guard lock(mutex_);
    cancelled.swap(attempts_);
  }
  for (const attempt& a : cancelled)
    if (const auto connection = a.connection.lock())
      connection->cancel();
}

void connector_impl::cancel(std::uint64_t operation_id, asio::cancellation_type_t type) {
  std::shared_ptr<cm_connection> connection;
  {
    const std::lock_guard lock(mutex_);
    for (const attempt& a : attempts_)
      if (a.operation_id == operation_id)
        connection = a.connection.lock();
  }
  if (connection)
    connection->cancel(operation_id, type);
}

} // namespace asio_rdma::detail
