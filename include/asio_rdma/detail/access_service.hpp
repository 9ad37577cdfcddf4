// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer_access.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/intrusive/list.hpp>

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace asio_rdma::detail {

struct waiters_of_service;
class access_service;

/// An asynchronous operation that waits for access to a buffer. It is in the list of its block
/// while it waits, and in that of its context's service until it is finished.
class access_operation : public access_waiter,
                         public boost::intrusive::list_base_hook<
                             boost::intrusive::tag<waiters_of_service>,
                             boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  enum class outcome { granted, aborted, destroyed };
  using function = void (*)(access_operation*, outcome);

  access_operation(function f, access_service& s) noexcept : service(s), function_(f) {}
  access_operation(const access_operation&) = delete;

  /// Frees it; the handler is posted, or destroyed. Throws only if the I/O executor is not that of
  /// an `io_context` and cannot post.
  void finish(outcome how) { function_(this, how); }

  access_service& service;
  std::uint64_t id = 0; ///< Names it to a cancellation slot.
  buffer_access access;

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

  explicit access_service(asio::execution_context& context)
      : asio::execution_context::service(context) {}
  static access_service& of(asio::execution_context& context);

  std::uint64_t next_id();
  /// Lets it wait; finishes it at once if it need not wait.
  void start(access_operation& op);
  void cancel(std::uint64_t which);
  /// Finishes operations whose access has been granted.
  static void granted(access_waiters waiters) noexcept;

private:
  void shutdown() override;

  std::mutex mutex_;
  std::condition_variable emptied_;
  std::uint64_t last_id_ = 0;
  bool stopped_ = false;
  access_waiters dropped_; // when it has stopped
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
