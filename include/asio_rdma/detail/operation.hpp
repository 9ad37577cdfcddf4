// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/intrusive/list.hpp>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace asio_rdma::detail {

class memory_window_impl;
class work_queue;

/// What to do with an operation that has left its queue.
enum class disposal {
  complete_here, ///< Run the handler; this thread runs the completion queue's execution context.
  complete,      ///< Run the handler; this thread may be any.
  destroy        ///< Destroy the handler without running it.
};

/// An asynchronous operation: its place in one queue, its result, and one function that turns it
/// back into a handler. `wr_id` of its work request is its address.
class operation : public boost::intrusive::list_base_hook<
                      boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  using function = void (*)(operation*, disposal);

  explicit operation(function f) noexcept : function_(f) {}
  operation(const operation&) = delete;

  /// Frees the operation; whoever calls has taken it from its list.
  void dispose(disposal how) { function_(this, how); }

  /// Gives the operation an error for its result.
  void fail(error_code why) noexcept {
    ec = why;
    bytes = word = flags = qp_num = 0;
    value = 0;
  }

  // The result. What follows `ec` is written by the completion or by fail().
  error_code ec;
  std::uint32_t bytes;  ///< Received, or of the local buffers; 0 after an error.
  std::uint32_t word;   ///< Immediate data (host order) or the key that was invalidated.
  std::uint32_t flags;  ///< `ibv_wc_flags` of the completion.
  std::uint32_t qp_num; ///< Whose completion it was.
  std::uint64_t value;  ///< What an atomic operation found; of a receive, whether it was a WRITE's.

  std::uint64_t id = 0; ///< Names the operation to a cancellation slot.
  /// The library's own, which calls nothing of the user's: any thread may dispose of it.
  bool internal = false;
  /// Where it is, or was. Stored before the device has the operation: another thread may find it
  /// completed, and from there its queue's lock, before the one that posted it has gone on.
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

  // Filled by the request, but for wr_id and next.
  bool usual; ///< Signaled, not fenced, of one buffer, and not atomic: for the shortest way.
  std::uint32_t inline_bytes; ///< Of the payload, if it may go with the request; else the most.
  std::uint32_t result_slot;  ///< An atomic operation's, while posted.
  ibv_send_wr wr;

  static constexpr std::uint32_t never_inline = static_cast<std::uint32_t>(-1);
  /// Beside the `ibv_send_flags` until it is started: whether the queue pair has such an operation
  /// could not be asked before.
  static constexpr unsigned ask_when_started = 1u << 31;
};

/// The binding of a memory window, which it keeps.
class bind_operation : public send_operation {
public:
  using send_operation::send_operation;

  std::shared_ptr<memory_window_impl> window;
};

/// An operation of a receive queue, a queue pair's own or a shared one.
class receive_operation : public operation {
public:
  explicit receive_operation(function f) noexcept : operation(f) {
    wr.wr_id = reinterpret_cast<std::uintptr_t>(static_cast<operation*>(this));
    wr.next = nullptr;
  }

  ibv_recv_wr wr;
  /// The library's own, which is no work of the context until it has completed
  /// (completion_queue_impl::background_starting).
  bool background = false;
};

} // namespace asio_rdma::detail
