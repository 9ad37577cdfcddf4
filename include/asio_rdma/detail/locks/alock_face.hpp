// SPDX-License-Identifier: BSL-1.0
// The operations of locks, and the functions of `alock_view` that templates call. The functions
// correspond to its members.
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <boost/asio/cancellation_type.hpp>

#include <cstdint>
#include <memory>

namespace asio_rdma::detail {
class alock_parties;
class alock_view;
class completion_service;
class global_memory_impl;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

class alock_operation;

/// A holder of a lock, or a waiter. The object exists as long as it takes part.
class alock_party {
public:
  /// Releases the lock that the party holds. `op` completes when the lock has been released; it
  /// may be null. Returns false if the view of `op` is closed; `op` then stays the caller's.
  /// Thread-safe.
  virtual bool unlock(alock_operation* op) noexcept = 0;

protected:
  ~alock_party() = default;
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

/// Returns null if the memory is null or closed.
std::shared_ptr<alock_view> locks_of(global_memory_impl* memory);
bool start(alock_view& view, alock_operation& op);
bool start_unlock(alock_view& view, alock_operation& op, alock_party* held);
void cancel(alock_view& view, std::uint64_t id, asio::cancellation_type_t type);
std::uint64_t next_id_of(alock_view& view) noexcept;

// The names that handler tracking shows. The result of `async_lock` has a name of its own.
inline const char* object_name(const alock_view*) noexcept { return "alock"; }
inline const char* operation_name(const alock_view*, const alock_operation&) noexcept {
  return "async_unlock";
}

} // namespace asio_rdma::detail
#pragma GCC visibility pop
