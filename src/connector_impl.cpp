// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/connector_impl.hpp>

namespace asio_rdma::detail {

bool connector_impl::start(connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
                           const std::vector<asio::ip::tcp::endpoint>& endpoints,
                           const connect_options& options) {
  const auto attempt = std::make_shared<cm_connection>(service_, executor_);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(attempts_, [](const auto& w) { return w.expired(); });
    attempts_.push_back(attempt);
  }
  const error_code ec = attempt->connect(op, qp, endpoints, options);
  if (ec) // otherwise the operation may have completed already
    op.ec = ec;
  return !ec;
}

std::vector<std::shared_ptr<cm_connection>> connector_impl::attempts() {
  std::vector<std::shared_ptr<cm_connection>> result;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : attempts_)
    if (auto attempt = weak.lock())
      result.push_back(std::move(attempt));
  return result;
}

void connector_impl::cancel() {
  for (const auto& attempt : attempts())
    attempt->cancel();
}

void connector_impl::cancel(std::uint64_t operation_id, asio::cancellation_type_t) {
  for (const auto& attempt : attempts())
    attempt->cancel(operation_id);
}

} // namespace asio_rdma::detail
