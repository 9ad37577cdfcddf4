// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connecting/cm_connection.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

/// The logic of `basic_connector`: it knows the pending attempts, to cancel them.
class connector_impl {
public:
  connector_impl(cm_service& service, asio::any_io_executor executor)
      : service_(service), executor_(std::move(executor)) {}

  bool start(connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
             const std::vector<asio::ip::tcp::endpoint>& endpoints, const connect_options& options);
  void cancel();
  void cancel(std::uint64_t operation_id, asio::cancellation_type_t type);
  std::uint64_t next_id() noexcept { return ++ids_; }

private:
  struct attempt {
    std::uint64_t operation_id;
    std::weak_ptr<cm_connection> connection;
  };

  cm_service& service_;
  asio::any_io_executor executor_;
  std::atomic<std::uint64_t> ids_{0};
  checked_mutex mutex_;
  std::vector<attempt> attempts_;
};

} // namespace asio_rdma::detail
