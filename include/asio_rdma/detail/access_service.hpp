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
class access_service;

/// An asynchronous operation that waits for access to a buffer. It is in the list of its block
/// while it waits, and in that of its context's service until it completes.
class access_operation : public access_waiter,
                         public boost::intrusive::list_base_hook<
                             boost::intrusive::tag<waiters_of_service>,
                             boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  enum class step { announce, complete, destroy };
  using function = void (*)(access_operation*, step);

  access_operation(function f, access_service& s) noexcept : service(s), function_(f) {}
  access_operation(const access_operation&) = delete;

  /// Posts a call of `access_service::run` to the I/O executor. Throws if the executor does; then
  /// nothing has been posted.
  void announce() { function_(this, step::announce); }
  /// Frees the operation and calls its handler by way of the I/O executor. Throws as that executor
  /// and the handler do.
  void complete() { function_(this, step::complete); }
  /// Frees the operation and destroys its handler.
  void destroy() noexcept { function_(this, step::destroy); }

  access_service& service;
  std::uint64_t id = 0; ///< Names the operation to a cancellation slot.
  buffer_access access;
  bool aborted = false;
  bool announced = false;

protected:
  ~access_operation() = default;

private:
  function function_;
};

/// Those of one execution context who wait for access to a buffer. Its lock is taken before that
/// of a block's access state.
class access_service : public asio::execution_context::service {
public:
  using key_type = access_service;
  static asio::execution_context::id id;

  explicit access_service(asio::execution_context& context);
  ~access_service() override;
  static access_service& of(asio::execution_context& context);

  std::uint64_t next_id();
  /// Lets the operation wait. If its access is free it completes, but not inside this call.
  void start(access_operation& op);
  void cancel(std::uint64_t which);
  /// Completes operations whose access has been granted, on their contexts. Allocates nothing.
  static void granted(access_waiters waiters) noexcept;
  /// Completes an operation that has been announced.
  void run(std::uint64_t which);

private:
  struct runner;

  void shutdown() override;
  void make_ready(access_operation& op) noexcept;

  std::mutex mutex_;
  std::condition_variable emptied_;
  std::uint64_t last_id_ = 0;
  bool stopped_ = false;
  access_waiters ready_;           // granted or aborted
  access_waiters dropped_;         // when it has stopped
  std::unique_ptr<runner> runner_; // null if the context is not of Asio's kind
  boost::intrusive::list<access_operation,
                         boost::intrusive::base_hook<boost::intrusive::list_base_hook<
                             boost::intrusive::tag<waiters_of_service>,
                             boost::intrusive::link_mode<boost::intrusive::normal_link>>>,
                         boost::intrusive::constant_time_size<false>>
      operations_;
};

/// Put into a handler's cancellation slot, which may keep it long after: it keeps no memory.
struct access_canceller {
  access_service* service;
  std::uint64_t id;

  void operator()(asio::cancellation_type_t type) const {
    if (type != asio::cancellation_type::none)
      service->cancel(id);
  }
};

} // namespace asio_rdma::detail
