// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/cm_connection.hpp>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace asio_rdma::detail {

/// Waits for a connection request; where a queue pair is given, until that is connected.
class accept_operation : public connect_operation {
public:
  using connect_operation::connect_operation;

  std::shared_ptr<cm_connection> request;
  std::shared_ptr<queue_pair_impl> qp;
  accept_options options;
  /// Those of the acceptor when it began, if it goes on after a connector that failed: then one
  /// since has ended it.
  std::optional<std::uint64_t> cancels;
};

/// The logic of `basic_acceptor`: a listening id, the requests that nobody has taken, and the
/// operations that wait for one. One of the two lists is empty.
class acceptor_impl final : public cm_handler {
public:
  acceptor_impl(cm_service& service, asio::any_io_executor executor);
  ~acceptor_impl();

  error_code open(asio::ip::tcp::endpoint endpoint, int backlog);
  error_code adopt(rdma_cm_id* id, int backlog);
  rdma_cm_id* native_handle() const;
  asio::ip::tcp::endpoint local_endpoint() const;
  bool start(accept_operation& op);
  void cancel();
  void cancel(std::uint64_t operation_id, asio::cancellation_type_t type);
  void close() override;
  std::uint64_t next_id() noexcept { return ++ids_; }
  std::uint64_t cancels() const;
  /// An error of accepting that says nothing about the next connector.
  bool is_of_connector(const error_code& ec) const;

  void on_cm_event(const cm_event& event) override;
  std::shared_ptr<cm_handler> adopt_request(rdma_cm_id* id) override;

private:
  class request;

  error_code listen(int backlog);
  bool has_room();
  void cancel(const error_code& why);
  void close(const error_code& why);
  enum class served { going_on, done, refused };
  served serve(accept_operation& op, const std::shared_ptr<cm_connection>& connection);

  cm_service& service_;
  asio::any_io_executor executor_;
  std::atomic<std::uint64_t> ids_{0};

  mutable std::mutex mutex_;
  rdma_cm_id* id_ = nullptr;
  error_code closed_by_;
  std::uint64_t cancels_ = 0;
  std::size_t backlog_ = 0;
  std::deque<std::shared_ptr<cm_connection>> requests_;
  operation_list waiting_;
  std::vector<std::weak_ptr<cm_connection>> accepting_;
};

} // namespace asio_rdma::detail
