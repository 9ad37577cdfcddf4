// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/global/global_guest.hpp>
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

/// A holder of a lock, or a waiter. The object exists as long as it takes part.
class alock_party {
public:
  /// Releases the lock that the party holds. `told` completes when the lock has been released; it
  /// may be null. Returns false if the view of `told` is closed; `told` then stays the caller's.
  /// Thread-safe.
  virtual bool unlock(alock_operation* told) noexcept = 0;

protected:
  ~alock_party() = default;
};

/// The parties that release locks for operations of views.
class alock_parties {
public:
  /// Ends all operations of a closed view. Releases of locks that have begun go on.
  virtual void abandon(const alock_view& view) = 0;

protected:
  ~alock_parties() = default;
};

/// A wait for a lock, or for the release of a lock.
class alock_operation : public operation {
public:
  explicit alock_operation(function f) noexcept : operation(f) {}

  remote_word at;
  std::uint32_t local_budget = 1, remote_budget = 1;
  alock_party* granted = nullptr;
  completion_service* service = nullptr; ///< The service that completes the operation.
  alock_view* view = nullptr;            ///< The view that the operation was started on.
  /// The parties that release the lock for this operation (`alock_view::wait_for`).
  std::shared_ptr<alock_parties> others = nullptr;

protected:
  // If the handler has not been called, the lock is released here.
  ~alock_operation() {
    if (granted != nullptr)
      granted->unlock(nullptr);
  }
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
  const std::shared_ptr<alock_remotes> remotes_;
  std::atomic<std::uint64_t> ids_{0};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;                // locked after those of all parties
  operation_list waits_for_others_; // operations whose `others` is not null
};

inline std::uint64_t next_id_of(alock_view& impl) noexcept { return impl.next_id(); }
inline void cancel(alock_view& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}

} // namespace asio_rdma::detail
