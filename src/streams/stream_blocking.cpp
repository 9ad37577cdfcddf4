// SPDX-License-Identifier: BSL-1.0
// A stream's operations without handlers: blocking functions, and those that must not block.
#include "streams/stream_impl.hpp"

#include "connecting/cm_service.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace asio_rdma::detail {

/// Removes the operation of a blocking function from all lists when the function ends, also by an
/// exception or a forced unwind (of a cancelled thread). The operation lies on the caller's stack.
class stream_impl::stay {
public:
  stay(stream_impl& s, stream_operation& op) noexcept : stream_(s), op_(op) {}
  stay(const stay&) = delete;
  ~stay() { end(asio::error::operation_aborted); }

  /// Ends the operation with `why`, unless it has its result.
  void end(const error_code& why) {
    if (!std::exchange(over_, true))
      stream_.give_up(op_, why);
  }

private:
  stream_impl& stream_;
  stream_operation& op_;
  bool over_ = false;
};

// Returns true if the operation is over at once.
template <class Op>
bool stream_impl::begin_here(Op& op, bool wait) {
  link_impl::visit v(link_);
  op.blocking_ = true;
  op.waiter_ = wait ? &waker::of_this_thread() : nullptr;
  op.finished_ = false;
  if (!begin(op))
    return true;
  run_or_enqueue(op, v);
  return op.finished_;
}

template <class Op>
void stream_impl::run_op_here(Op& op, bool wait) {
  // Answers the peer even if bytes are at hand, because perhaps no thread runs the context. An
  // exception here loses nothing.
  link_.completion_queue().run_ready_internal();
  if (begin_here(op, wait))
    return;
  stay here(*this, op);
  try {
    wait ? wait_for(op) : look_here();
  } catch (const std::exception&) { // from an operation of another object
    here.end(asio::error::operation_aborted);
    if (op.ec == asio::error::operation_aborted)
      throw;
  }
  here.end(asio::error::would_block);
}

// The operation lies on the caller's stack: no list may refer to it after this.
void stream_impl::give_up(stream_operation& op, const error_code& why) {
  link_impl::visit v(link_);
  if (op.finished_)
    return;
  v.changed();
  if (why == asio::error::would_block)
    v.advance();
  if (!op.finished_ && withdraw_op(op))
    finish(op, why, 0, v.done);
  if (!op.finished_)
    v.advance();
}

// Replaces the context's work: perhaps no thread runs the context.
void stream_impl::look_here() {
  cm_service::of(link_.context()).read_events();
  link_.completion_queue().run_ready_internal();
}

void stream_impl::wait_for(stream_operation& op) {
  cm_service& connections = cm_service::of(link_.context());
  while (!is_finished(op)) {
    connections.read_events();
    link_.completion_queue().drive(connections.descriptor(), *op.waiter_);
    link_impl::visit v(link_);
    if (!op.finished_)
      v.advance(); // memory may be free again, and perhaps no thread runs the context's timers
  }
}

bool stream_impl::is_finished(const stream_operation& op) const {
  const auto guard = link_.lock();
  return op.finished_;
}

void stream_impl::run_here(stream_reading& op, bool wait) { run_op_here(op, wait); }
void stream_impl::run_here(stream_error_wait& op, bool wait) { run_op_here(op, wait); }

// A blocking socket writes all bytes, as send(2).
void stream_impl::run_here(stream_writing& op, bool wait) {
  const bool waits = op.request.what == stream_write::kind::wait;
  // Until all bytes are written, not only the bytes of one call.
  const registered_buffer memory = op.memory;
  const buffer_access access = std::move(op.access);
  std::uint64_t total = 0;
  for (;;) {
    try {
      run_op_here(op, wait);
    } catch (const std::exception&) {
      if (total == 0)
        throw;
      op.value = 0;
      break;
    }
    total += waits ? 0 : op.value;
    if (!wait || waits || op.ec || op.size == 0 || op.value == op.size)
      break;
    std::uint64_t skip = op.value;
    op.size -= skip;
    for (std::size_t i = 0; i < op.part_count && skip != 0; ++i) {
      const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(op.parts[i].length, skip));
      op.parts[i].addr += n;
      op.parts[i].length -= n;
      skip -= n;
    }
  }
  if (total != 0)
    op.ec = {};
  op.value = total;
}

} // namespace asio_rdma::detail
