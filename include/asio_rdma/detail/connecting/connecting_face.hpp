// SPDX-License-Identifier: BSL-1.0
// The functions of acceptors, of connectors and of connections by rdma_cm that templates call. They
// correspond to the members of the classes of the same names in src/connecting.
#pragma once

#include <asio_rdma/acceptor_statistics.hpp>
#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/error.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace asio_rdma::detail {
class acceptor_impl;
class cm_connection;
class cm_gate;
class cm_service;
class connection_target;
class connector_impl;
class queue_pair_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// An operation that establishes a connection.
class connect_operation : public operation {
public:
  using operation::operation;
  connection_info info;
  std::shared_ptr<connection_target> target; ///< Null for a bare queue pair.
};

/// The service of a queue pair's context, for another context that connects the queue pair. The
/// service is used only with its gate entered.
struct cm_home {
  cm_service* service = nullptr;
  std::shared_ptr<cm_gate> gate;
};

/// A wait for a connection request. If a queue pair is given, the operation completes when that is
/// connected.
class accept_operation : public connect_operation {
public:
  using connect_operation::connect_operation;

  std::shared_ptr<cm_connection> request;
  std::shared_ptr<queue_pair_impl> qp;
  cm_home home; ///< Of the queue pair.
  accept_options options;
  /// Whether it has taken a request.
  bool taken = false;
  /// For an operation that continues after errors of one connector: `acceptor_impl::cancels` at its
  /// start. A different value means that it has been cancelled.
  std::optional<std::uint64_t> cancels;
};

/// Throws an error with the endpoint in its text.
void throw_if(const error_code& ec, const char* what, const asio::ip::tcp::endpoint& where);

/// Return null after an error.
std::shared_ptr<acceptor_impl> open_acceptor(asio::execution_context& context,
                                             const asio::any_io_executor& executor,
                                             const asio::ip::tcp::endpoint& endpoint,
                                             const acceptor_options& options, error_code& ec);
std::shared_ptr<acceptor_impl> adopt_acceptor(asio::execution_context& context,
                                              const asio::any_io_executor& executor, rdma_cm_id* id,
                                              const acceptor_options& options, error_code& ec);
rdma_cm_id* native_handle(const acceptor_impl& impl);
asio::ip::tcp::endpoint local_endpoint(const acceptor_impl& impl);
acceptor_statistics statistics(const acceptor_impl& impl);
bool start(acceptor_impl& impl, accept_operation& op);
void cancel(acceptor_impl& impl);
void cancel(acceptor_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
void close(acceptor_impl& impl);
std::uint64_t next_id_of(acceptor_impl& impl) noexcept;
std::uint64_t cancels(const acceptor_impl& impl);
bool is_of_connector(const acceptor_impl& impl, const error_code& ec);

std::shared_ptr<connector_impl> make_connector(asio::execution_context& context,
                                               const asio::any_io_executor& executor);
bool start(connector_impl& impl, connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
           const std::vector<asio::ip::tcp::endpoint>& endpoints, const connect_options& options);
void cancel(connector_impl& impl);
void cancel(connector_impl& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(connector_impl& impl) noexcept;

/// The context where accepting the request completes. It may have been destroyed: compare only.
const asio::execution_context& context_of(const cm_connection& request) noexcept;
/// Accepts the request. Returns true, or false with the error in the operation.
bool start(cm_connection& request, connect_operation& op,
           const std::shared_ptr<queue_pair_impl>& qp, const accept_options& options);
void cancel(cm_connection& impl, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(cm_connection& impl) noexcept;

// The names that handler tracking shows.
inline const char* object_name(const acceptor_impl*) noexcept { return "acceptor"; }
inline const char* object_name(const connector_impl*) noexcept { return "connector"; }
inline const char* object_name(const cm_connection*) noexcept { return "connection_request"; }
inline const char* operation_name(const acceptor_impl*, const accept_operation& op) noexcept {
  return op.qp != nullptr ? "async_accept" : "async_wait_request";
}
inline const char* operation_name(const connector_impl*, const connect_operation&) noexcept {
  return "async_connect";
}
inline const char* operation_name(const cm_connection*, const connect_operation&) noexcept {
  return "async_accept";
}

} // namespace asio_rdma::detail
#pragma GCC visibility pop
