// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/detail/connecting/connecting_face.hpp>
#include <rdma/rdma_cma.h>

#include "connecting/pending_handshakes.hpp"
#include "core/background_calls.hpp"
#include "core/checked_mutex.hpp"
#include "queues/completion_service.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// The private data of an event, stored in place: a copy allocates nothing.
class cm_data {
public:
  static constexpr std::size_t most = 255; // rdma_cm stores the size in eight bits

  void assign(const void* data, std::size_t size) noexcept {
    const auto* first = static_cast<const std::byte*>(data);
    size_ = data == nullptr ? 0 : std::min(size, most);
    std::copy_n(first, size_, data_.begin());
  }
  std::span<const std::byte> bytes() const noexcept { return {data_.data(), size_}; }

private:
  std::array<std::byte, most> data_;
  std::size_t size_ = 0;
};

class cm_service;

/// A copy of an rdma_cm event, whose original has been acknowledged.
struct cm_event {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = 0;
  rdma_cm_id* id = nullptr;
  /// `cm_handler::ids_made` at a time when the id existed. A later id may have the same address.
  std::uint64_t ids_made = 0;
  /// The number of the context's turn in which the event was read.
  std::uint64_t turn = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  cm_data data;
};

/// The owner of an rdma_cm_id, which is found by `rdma_cm_id::context`.
class cm_handler : public std::enable_shared_from_this<cm_handler> {
public:
  /// Called by one thread at a time. Must not run handlers.
  virtual void on_cm_event(const cm_event& event) = 0;
  /// Called when the context of `by` shuts down. The handler ends its operations and destroys its
  /// ids, and does not use the context afterwards.
  virtual void close(const cm_service& by) = 0;
  /// A connection request. If the result is false, or an exception is thrown, the request's id
  /// stays the caller's. Otherwise its `context` has been set to its new owner.
  virtual bool on_request(const cm_event&) { return false; }

  std::atomic<std::uint64_t> ids_made{0};

protected:
  ~cm_handler() = default;
};

/// A call of rdma_cm that a background thread makes.
class cm_call : public background_call {
public:
  /// Called after `cm_service::give_back`, like `cm_handler::on_cm_event`.
  virtual void on_return(const std::shared_ptr<background_call>& self) = 0;
};

/// The destruction of an id, which may wait for the peer: `cm_service::end_ids`. It is made before
/// the id, so that the end of a connection needs no memory.
class cm_id_end final : public background_call {
public:
  ~cm_id_end() override { destroy(); }
  /// Takes over the id, with the handler of the events that are read until it is destroyed.
  void set(rdma_cm_id* id, std::shared_ptr<cm_handler> handler) noexcept {
    assert(id_ == nullptr && id != nullptr);
    id_ = id;
    handler_ = std::move(handler);
  }
  /// Counts the id, which `set` has taken over, as one of a request of this connector.
  void count(const std::shared_ptr<ending_ids>& ids, const asio::ip::address& connector) noexcept {
    assert(id_ != nullptr && counted_ == nullptr);
    connector_ = connector;
    if (ids->begin(connector))
      counted_ = ids;
  }
  void run(const std::shared_ptr<background_call>&) noexcept override { destroy(); }
  std::uint64_t group() const noexcept override { return ending_ids::number_of(connector_); }

private:
  void destroy() noexcept {
    if (id_ != nullptr)
      rdma_destroy_id(std::exchange(id_, nullptr));
    if (counted_)
      std::exchange(counted_, nullptr)->end(connector_);
    handler_.reset();
  }

  rdma_cm_id* id_ = nullptr;
  std::shared_ptr<cm_handler> handler_;
  std::shared_ptr<ending_ids> counted_;
  asio::ip::address connector_; // unspecified for an id of no request
};

/// Counts the threads that use a service. The service's shutdown waits for threads of other
/// contexts.
class cm_gate {
public:
  /// False once the gate is closed.
  bool enter() noexcept;
  void leave() noexcept;
  /// Returns when the last thread has left.
  void close() noexcept;

private:
  std::mutex mutex_;
  std::condition_variable empty_;
  std::size_t users_ = 0;
  bool closed_ = false;
};

/// The use of a service by a thread, until destruction.
class cm_use {
public:
  cm_use() = default;
  cm_use(const cm_use&) = delete;
  ~cm_use() {
    if (gate_)
      gate_->leave();
  }

  /// Returns false if the service has shut down. Called at most once: a second call would leave the
  /// first gate entered.
  bool begin(const std::shared_ptr<cm_gate>& gate) noexcept {
    assert(gate_ == nullptr && gate != nullptr);
    if (!gate->enter())
      return false;
    gate_ = gate;
    return true;
  }
  bool begun() const noexcept { return gate_ != nullptr; }

private:
  std::shared_ptr<cm_gate> gate_;
};

/// The connection manager's event channel of one execution context.
class cm_service : public asio::execution_context::service {
public:
  using key_type = cm_service;
  static asio::execution_context::id id;

  explicit cm_service(asio::execution_context& context);
  ~cm_service() override;

  static cm_service& of(asio::execution_context& context);

  /// Makes an id of `handler`, which then receives its events. Errors: `operation_aborted` once the
  /// service has begun to shut down; `error::no_device`; those of the system.
  rdma_cm_id* make_id(const std::shared_ptr<cm_handler>& handler, error_code& ec);
  /// rdma_resolve_addr(3) of an id of this service, never while an event is being read: librdmacm
  /// writes the id's addresses after the kernel has accepted the call, and again with its answer.
  int resolve_address(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout);
  /// Makes the event channel. Errors: those of `make_id`.
  error_code prepare();
  /// Makes the event channel for ids of `handler`, and registers the handler for the shutdown.
  /// Errors: those of `make_id`.
  error_code expect(const std::shared_ptr<cm_handler>& handler);
  /// Moves an id of an expected handler and its events from another event channel. Waits until the
  /// events that were read there have been acknowledged.
  error_code adopt_id(rdma_cm_id* id);
  /// Does the same with an id of the user's, which `owner` then owns, and calls `use`. If either
  /// fails, the id goes back, to an event channel of its own. If it cannot go back, for lack of a
  /// descriptor or of kernel memory, it stays, and its `context` is null.
  error_code take_id(rdma_cm_id* id, cm_handler& owner, const std::function<error_code()>& use);
  /// No event of this service is read while the result exists. Needs the event channel.
  std::unique_lock<std::mutex> hold_events();
  /// Registers a handler whose id came with a request.
  void remember(const std::shared_ptr<cm_handler>& handler);

  /// Whether `calls` may be used. If the context's concurrency hint promises that no other thread
  /// uses the context, none may.
  bool has_background_calls() const;
  /// Destroys the ids of these `cm_id_end` on a background thread: the kernel may wait for the
  /// peer. Destroys them here if there is no such thread. The shutdown waits for it.
  void end_ids(call_list& ids) noexcept;
  /// Threads that destroy ids: all, and those for connectors of one source, so that its slow
  /// destructions do not delay those of others.
  ///@{
  static constexpr std::size_t most_ends_at_a_time = 16;
  static constexpr std::size_t most_ends_of_source_at_a_time = most_ends_at_a_time / 2;
  ///@}
  /// Threads that destroy ids during the shutdown, which waits for them.
  static constexpr std::size_t most_ends_at_shutdown = 256;
  /// The ids of requests of this context's acceptors. They may be destroyed by other contexts.
  const std::shared_ptr<ending_ids>& ending() const noexcept { return ending_; }
  /// Calls of rdma_cm that would block a thread of the context. The shutdown waits for them.
  background_calls& calls() noexcept { return calls_; }
  /// Passes a call that has returned to the thread that reads the events. Called by `calls`.
  void give_back(std::shared_ptr<cm_call> call) noexcept;

  /// Keeps verbs objects of the context until all its services have shut down. Otherwise another
  /// context would destroy them, perhaps at the same time. At most once for each handler that was
  /// added: there is room for it.
  void keep(std::shared_ptr<void> objects) noexcept;

  /// For a thread that waits and does not run the context. `read_events` reads some events, like
  /// readers on the context. `descriptor` becomes readable when there are events; -1 before the
  /// first id.
  void read_events();
  int descriptor() const;

  completion_service& operations() const noexcept { return operations_; }
  /// The acceptors and connections that exist, for reports.
  std::vector<std::shared_ptr<cm_handler>> handlers() const;
  /// Must be entered by threads that do not run the context.
  const std::shared_ptr<cm_gate>& gate() const noexcept { return gate_; }

private:
  struct channel;

  void shutdown() override;
  bool open(error_code& ec);
  channel* opened() const;
  void add(const std::shared_ptr<cm_handler>& handler);

  completion_service& operations_;
  const std::shared_ptr<cm_gate> gate_ = std::make_shared<cm_gate>();
  const std::shared_ptr<ending_ids> ending_ = std::make_shared<ending_ids>();
  mutable checked_mutex mutex_;
  std::unique_ptr<channel> channel_;
  std::vector<std::weak_ptr<cm_handler>> handlers_;
  std::vector<std::shared_ptr<void>> kept_;
  std::size_t clean_at_ = 64;
  background_calls calls_, ends_; // an end does not wait behind calls that hang
  bool stopped_ = false;          // handlers that are added later would not be closed
};

asio::ip::tcp::endpoint endpoint_of(const sockaddr* address);
/// As `endpoint_of`, for an address of the connection of `id`.
asio::ip::tcp::endpoint scoped_endpoint(const rdma_cm_id& id, const sockaddr* address) noexcept;
error_code cm_error(int value);

} // namespace asio_rdma::detail
