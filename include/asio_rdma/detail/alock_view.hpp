// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/operation.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <boost/asio/cancellation_type.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace asio_rdma::detail {

class alock_operation;
class alock_remotes;
class alock_view;
class completion_service;
class connection_impl;
class global_memory_impl;
class global_node;

/// Who has a lock, or wants it. It stays as long as it takes part.
class alock_party {
public:
  /// Gives back the lock that it has; `told` completes when that is done, unless it is null. False
  /// if the view of `told` is closed: the operation stays the caller's then. From any thread.
  virtual bool unlock(alock_operation* told) noexcept = 0;

protected:
  ~alock_party() = default;
};

/// The parties that give locks back for operations of views.
class alock_parties {
public:
  /// Ends all operations of a view that is closed. Locks that are being given back still are.
  virtual void abandon(const alock_view& view) = 0;

protected:
  ~alock_parties() = default;
};

/// Waits for a lock, or until one has been given back.
class alock_operation : public operation {
public:
  explicit alock_operation(function f) noexcept : operation(f) {}

  remote_word at;
  std::uint32_t local_budget = 1, remote_budget = 1;
  alock_party* granted = nullptr;
  completion_service* service = nullptr; ///< That completes it.
  alock_view* view = nullptr;            ///< That it was started on.
  /// The parties that the operation waits for by `alock_view::wait_for`.
  std::shared_ptr<alock_parties> others = nullptr;

protected:
  // Whose handler is not called leaves the lock to others.
  ~alock_operation() {
    if (granted != nullptr)
      granted->unlock(nullptr);
  }
};

/// The locks that a view of a node takes: those of its own node as one of the local cohort, others
/// as one of the remote cohort. Safe from any thread; who calls keeps it.
class alock_view final {
public:
  explicit alock_view(global_memory_impl& memory);
  ~alock_view();

  /// Gives true, or false with the error in the operation, which stays the caller's then.
  bool start(alock_operation& op);
  bool start_unlock(alock_operation& op, alock_party* held);
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  std::uint64_t next_id() noexcept { return ++ids_; }
  /// The node that the link leads to says that the one of whom this descriptor is has been handed a
  /// lock there. It may be wrong.
  void on_next(const connection_impl* way, segment_id segment, std::uint64_t descriptor);
  /// Ends what waits. The ways to other nodes are closed.
  void close();

  bool is_closed() const noexcept { return closed_.load(); }
  /// Whether the locks of other nodes that it takes are these.
  bool takes_by(const alock_remotes& parties) const noexcept { return remotes_.get() == &parties; }
  /// An operation of this view waits for a lock to be given back by a party of another view, or of
  /// a node. From here on the operation is counted. The view keeps the parties until the operation
  /// completes, and takes it back from them when the view is closed. False if the view is closed.
  /// Called under the parties' lock, as a view that is being closed asks for that lock next.
  bool wait_for(alock_operation& op, std::shared_ptr<alock_parties> others);
  /// Completes such an operation.
  void complete_waiting(alock_operation& op, const error_code& ec);

private:
  completion_service& service_;
  const std::shared_ptr<global_node> node_;
  const std::shared_ptr<alock_remotes> remotes_;
  std::atomic<std::uint64_t> ids_{0};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;                // after those of all parties
  operation_list waits_for_others_; // whose `others` is not null
};

} // namespace asio_rdma::detail
