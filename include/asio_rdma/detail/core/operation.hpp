// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/intrusive/list.hpp>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace asio_rdma::detail {

/// Whether this cancellation may end an operation that has begun and may have had effects. `total`
/// alone may not (Boost.Asio, `cancellation_type`).
inline bool may_leave_effects(asio::cancellation_type_t type) noexcept {
  return (type & (asio::cancellation_type::partial | asio::cancellation_type::terminal)) !=
         asio::cancellation_type::none;
}

class memory_window_impl;
class work_queue;
struct handler_executor;

/// How to dispose of an operation that has left its queue.
enum class disposal {
  complete_here, ///< Run the handler; this thread runs the completion queue's execution context.
  in_executor,   ///< Run the handler; its executor has called this thread.
  complete,      ///< Run the handler; this thread may be any.
  destroy        ///< Destroy the handler without running it.
};

/// An asynchronous operation: its place in one queue, its result, and the function that disposes of
/// it. The `wr_id` of its work request is its address.
class operation : public boost::intrusive::list_base_hook<
                      boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  using function = void (*)(operation*, disposal);

  explicit operation(function f) noexcept : function_(f) {}
  operation(const operation&) = delete;

  /// Frees the operation, which the caller has removed from its list.
  void dispose(disposal how) { function_(this, how); }

  /// Sets an error as the result.
  void fail(error_code why) noexcept {
    ec = why;
    bytes = word = flags = qp_num = 0;
    value = 0;
  }

  // The result. The members after `ec` are set by the completion or by `fail`.
  error_code ec;
  std::uint32_t bytes;  ///< Bytes received, or of the local buffers; 0 after an error.
  std::uint32_t word;   ///< Immediate data (host order), or the key that was invalidated.
  std::uint32_t flags;  ///< `ibv_wc_flags` of the completion.
  std::uint32_t qp_num; ///< Of the queue pair that reported the completion.
  std::uint64_t value;  ///< The previous value for an atomic operation; 1 for a receive that an
                        ///< RDMA WRITE consumed.

  /// The executor of the handler. Null: the plain one of the completion queue's context.
  const handler_executor* executor = nullptr;
  std::uint64_t id = 0; ///< Identifies the operation to a cancellation slot.
  /// An operation of the library's own that calls no code of the user's: any thread may dispose of
  /// it.
  bool internal = false;
  /// A later step of a loop of Asio's: the handler of the step before has started it, and ends with
  /// that.
  bool continues = false;
  /// A signaled send of one buffer, not fenced and not atomic: posted and completed by the shortest
  /// path.
  bool usual = false;
  /// The queue that has the operation, or had it. Stored before the operation is posted: another
  /// thread may see its completion, and lock the queue's mutex, before the posting thread
  /// continues.
  std::atomic<work_queue*> queue;

protected:
  ~operation() = default;

private:
  function function_;
};

using operation_list =
    boost::intrusive::list<operation, boost::intrusive::constant_time_size<false>>;

inline bool is_atomic(ibv_wr_opcode o) noexcept {
  return o == IBV_WR_ATOMIC_CMP_AND_SWP || o == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/// An operation of a send queue.
class send_operation : public operation {
public:
  explicit send_operation(function f) noexcept : operation(f) {
    wr.wr_id = reinterpret_cast<std::uintptr_t>(static_cast<operation*>(this));
    wr.next = nullptr;
  }

  // Filled by the request, except `wr_id` and `next`.
  std::uint32_t inline_bytes; ///< The payload's bytes if it may be inline, else `never_inline`.
  std::uint32_t result_slot;  ///< Of a posted atomic operation.
  ibv_send_wr wr;

  static constexpr std::uint32_t never_inline = 0;
};

/// A send operation that not every device, type of queue pair or peer has. It is checked when it is
/// started: a request may be started later, on a queue pair that was opened or connected meanwhile.
class checked_operation : public send_operation {
public:
  using send_operation::send_operation;
};

/// The binding of a memory window. Keeps the window.
class bind_operation : public send_operation {
public:
  using send_operation::send_operation;

  std::shared_ptr<memory_window_impl> window;
};

/// An operation of a receive queue, of one queue pair or shared.
class receive_operation : public operation {
public:
  explicit receive_operation(function f) noexcept : operation(f) {
    wr.wr_id = reinterpret_cast<std::uintptr_t>(static_cast<operation*>(this));
    wr.next = nullptr;
  }

  ibv_recv_wr wr;
  /// A receive of the library's own that does not count as work until it has completed
  /// (`completion_queue_impl::background_starting`).
  bool background = false;
  /// The CPU must not access the memory of a buffer. Such a receive is not started if it may do so
  /// (`device::has_device_only_receives`).
  bool device_only = false;
};

} // namespace asio_rdma::detail
