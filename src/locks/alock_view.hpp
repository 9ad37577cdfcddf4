// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/locks/alock_face.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <boost/asio/cancellation_type.hpp>

#include "global/global_guest.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace asio_rdma::detail {

class alock_locals;
class alock_remotes;
class connection_impl;
class global_node;

/// The parties that release locks for operations of views.
class alock_parties {
public:
  /// Ends all operations of a closed view. Releases of locks that have begun continue.
  virtual void abandon(const alock_view& view) = 0;

protected:
  ~alock_parties() = default;
};

/// The locks that a view of a node takes. Locks of its own node are taken as the local cohort,
/// locks of other nodes as the remote cohort. Thread-safe; the caller keeps the view alive.
class alock_view final : public memory_guest {
public:
  /// The locks of a memory. Null if the memory is null or closed.
  static std::shared_ptr<alock_view> of(global_memory_impl* memory);
  explicit alock_view(global_memory_impl& memory);
  ~alock_view() override;

  /// Return true, or false with the error in the operation, which then stays the caller's.
  bool start(alock_operation& op);
  bool start_unlock(alock_operation& op, alock_party* held);
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  std::uint64_t next_id() noexcept { return ++ids_; }
  void on_next(const connection_impl* way, segment_id segment, std::uint64_t descriptor) override;
  /// Ends all waits.
  void close() override;

  bool is_closed() const noexcept { return closed_.load(); }
  /// Whether `parties` are the remote parties of this view.
  bool takes_by(const alock_remotes& parties) const noexcept { return remotes_.get() == &parties; }
  /// Registers an operation of this view that waits for a party of another view, or of a node, to
  /// release a lock. The operation then counts as work. The view keeps the parties until the
  /// operation completes. When the view is closed it asks the parties to abandon the operation.
  /// Returns false if the view is closed. Called with the parties' mutex locked, which `close`
  /// locks afterwards.
  bool wait_for(alock_operation& op, std::shared_ptr<alock_parties> others);
  /// Completes an operation that was registered by `wait_for`.
  void complete_waiting(alock_operation& op, const error_code& ec);

private:
  completion_service& service_;
  const std::shared_ptr<global_node> node_;
  alock_locals& locals_; // made before any operation, because their end must not need memory
  const std::shared_ptr<alock_remotes> remotes_;
  std::atomic<std::uint64_t> ids_{0};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;                // locked after those of all parties
  operation_list waits_for_others_; // operations whose `others` is not null
};

} // namespace asio_rdma::detail
