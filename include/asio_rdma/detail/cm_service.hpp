// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/completion_service.hpp>
#include <rdma/rdma_cma.h>

#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

/// A copy of an rdma_cm event, whose original has been acknowledged.
struct cm_event {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = 0;
  rdma_cm_id* id = nullptr;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  private_data data;
};

/// Whoever owns an rdma_cm_id, which is found by `rdma_cm_id::context`.
class cm_handler : public std::enable_shared_from_this<cm_handler> {
public:
  /// Called by one thread at a time. Runs no handlers.
  virtual void on_cm_event(const cm_event& event) = 0;
  /// The execution context shuts down: operations are given up, the id is destroyed.
  virtual void close() = 0;
  /// Who hears of a connection request's id from now on: called before any further event is read.
  virtual std::shared_ptr<cm_handler> adopt_request(rdma_cm_id*) { return nullptr; }

protected:
  ~cm_handler() = default;
};

/// The connection manager's event channel of one execution context.
class cm_service : public asio::execution_context::service {
public:
  using key_type = cm_service;
  static asio::execution_context::id id;

  explicit cm_service(asio::execution_context& context);
  ~cm_service() override;

  static cm_service& of(asio::execution_context& context);

  /// A new id of `handler`, which is told of its events. Errors: `error::no_device`, the system's.
  rdma_cm_id* make_id(const std::shared_ptr<cm_handler>& handler, error_code& ec);
  /// rdma_resolve_addr(3) of an id that was made here. Never while an event is being read:
  /// librdmacm writes the id's addresses after the kernel has taken the call, and again with its
  /// answer.
  int resolve_address(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout);
  /// Moves an id of someone else, whose context is `handler`, to the event channel.
  error_code adopt_id(const std::shared_ptr<cm_handler>& handler, rdma_cm_id* id);
  /// Ids that came with a request.
  void remember(const std::shared_ptr<cm_handler>& handler);

  /// Keeps a handler that is done, but for ids that cannot be destroyed yet without waiting.
  void linger(std::shared_ptr<cm_handler> handler);
  void unlinger(const cm_handler& handler);

  /// For a thread that waits and does not run the context: what readers on it would do, and what to
  /// wait for; -1 before the first id.
  void read_events();
  int descriptor() const;

  completion_service& operations() const noexcept { return operations_; }

private:
  struct channel;

  void shutdown() override;
  bool open(error_code& ec);
  void add(const std::shared_ptr<cm_handler>& handler);

  completion_service& operations_;
  mutable std::mutex mutex_;
  std::unique_ptr<channel> channel_;
  std::vector<std::weak_ptr<cm_handler>> handlers_;
  std::size_t clean_at_ = 64;
  std::vector<std::shared_ptr<cm_handler>> lingering_;
};

asio::ip::tcp::endpoint endpoint_of(const sockaddr* address);
error_code cm_error(int value);

} // namespace asio_rdma::detail
