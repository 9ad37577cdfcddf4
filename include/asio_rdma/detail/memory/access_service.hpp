// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer_access.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/intrusive/list.hpp>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace asio_rdma::detail {
struct waiters_of_service;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

class access_service;

/// An asynchronous wait for access to a buffer. While it waits it is in the list of the buffer's
/// block. Until it completes it is in the list of its context's service.
class access_operation : public access_waiter,
                         public boost::intrusive::list_base_hook<
                             boost::intrusive::tag<waiters_of_service>,
                             boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  enum class step { announce, complete, destroy };
  using function = void (*)(access_operation*, step);

  access_operation(function f, access_service& s) noexcept : service(s), function_(f) {}
  access_operation(const access_operation&) = delete;

  /// Posts a call of `access_service::run` to the I/O executor. If the executor throws, the
  /// exception is passed on and nothing has been posted.
  void announce() { function_(this, step::announce); }
  /// Frees the operation and calls its handler on the I/O executor. Exceptions of the executor and
  /// of the handler are passed on.
  void complete() { function_(this, step::complete); }
  /// Frees the operation and destroys its handler.
  void destroy() noexcept { function_(this, step::destroy); }

  access_service& service;
  std::uint64_t id = 0; ///< Identifies the operation in its cancellation slot.
  buffer_access access;
  bool aborted = false;
  bool announced = false;

protected:
  ~access_operation() = default;

private:
  function function_;
};

/// A reference to a service that may outlive the service. Its mutex is locked before the service's.
struct access_service_link {
  explicit access_service_link(access_service* s) noexcept : service(s) {}

  std::mutex mutex;
  access_service* service; ///< Null once the service has begun to shut down.
};

/// The pending waits for access to buffers of one execution context. The service's mutex is locked
/// before that of a block's access state.
class access_service : public asio::execution_context::service {
public:
  using key_type = access_service;
  static asio::execution_context::id id;

  explicit access_service(asio::execution_context& context);
  ~access_service() override;
  static access_service& of(asio::execution_context& context);

  std::uint64_t next_id();
  /// Starts the wait. If the access is free the operation completes, but not inside this call.
  void start(access_operation& op);
  /// Returns the operation's memory. Its release may call a function of the application.
  memory_block_ptr cancel(std::uint64_t which);
  const std::shared_ptr<access_service_link>& link() const noexcept { return link_; }
  /// Completes operations whose access has been granted, each on its own context. Allocates
  /// nothing.
  static void granted(access_waiters waiters) noexcept;
  /// Completes an operation that has been announced. If it has completed already, nothing happens.
  void run(std::uint64_t which);

private:
  struct runner;

  void shutdown() override;
  void make_ready(access_operation& op) noexcept;

  const std::shared_ptr<access_service_link> link_ = std::make_shared<access_service_link>(this);
  std::mutex mutex_;
  std::condition_variable emptied_;
  std::uint64_t last_id_ = 0;
  bool stopped_ = false;
  access_waiters ready_;           // granted or aborted
  access_waiters dropped_;         // after shutdown
  std::unique_ptr<runner> runner_; // null if the context has no Asio scheduler
  boost::intrusive::list<access_operation,
                         boost::intrusive::base_hook<boost::intrusive::list_base_hook<
                             boost::intrusive::tag<waiters_of_service>,
                             boost::intrusive::link_mode<boost::intrusive::normal_link>>>,
                         boost::intrusive::constant_time_size<false>>
      operations_;
};

/// The cancellation handler of the operation. A cancellation slot may keep it longer than the
/// operation and the context exist, so it keeps neither of them nor the memory alive.
struct access_canceller {
  std::shared_ptr<access_service_link> link;
  std::uint64_t id;

  // The end of the operation on another thread may clear the slot, which destroys this object.
  void operator()(asio::cancellation_type_t type) const {
    if (type == asio::cancellation_type::none)
      return;
    const std::uint64_t which = id;
    const auto keep = link;
    memory_block_ptr block; // released after the mutex is unlocked
    const std::lock_guard lock(keep->mutex);
    if (keep->service != nullptr)
      block = keep->service->cancel(which);
  }
};

} // namespace asio_rdma::detail
#pragma GCC visibility pop
