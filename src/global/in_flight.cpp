// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/global/in_flight.hpp>

#include "core/descriptor_watch.hpp"
#include "queues/completion_service.hpp"

#include <algorithm>
#include <cassert>

namespace asio_rdma::detail {

in_flight::in_flight(completion_service& service, std::size_t most)
    : service_(service), free_(most) {}

bool in_flight::wait(std::unique_ptr<waiter> w) {
  assert(w != nullptr);
  const std::lock_guard guard(mutex_);
  if (closed_) {
    w->op.ec = asio::error::operation_aborted;
    return false;
  }
  waiters_.push_back(std::move(w));
  service_.operation_starting();
  ++waiting_;
  placeless_ += waiters_.back()->needs_place ? 0u : 1u;
  run(); // a place may be free again
  return true;
}

void in_flight::start_waiting() {
  const std::lock_guard guard(mutex_);
  run();
}

bool in_flight::waiter::try_start() noexcept {
  try {
    return start();
  } catch (const std::bad_alloc&) {
    op.ec = asio::error::no_memory;
    return false;
  }
}

// Once closed, fails all waiting operations: the context may be destroyed.
void in_flight::run() noexcept {
  operation_list done;
  for (auto i = waiters_.begin(); i != waiters_.end();) {
    const auto overtakes = [&] { // operations before it stay queued
      return std::any_of(waiters_.begin(), i,
                         [&](const auto& before) { return &before->link == &(*i)->link; });
    };
    const bool starts = (*i)->needs_place ? i == waiters_.begin() && take_free() : !overtakes();
    if (!closed_ && !starts) {
      if (placeless_ == 0)
        break;
      ++i;
      continue;
    }
    const std::unique_ptr<waiter> w = std::move(*i);
    i = waiters_.erase(i);
    assert(waiting_ != 0 && (w->needs_place || placeless_ != 0));
    placeless_ -= w->needs_place ? 0u : 1u;
    operation& op = w->op;
    if (closed_)
      op.ec = asio::error::operation_aborted;
    if (!closed_ && w->try_start()) {
      asio::use_service<scheduler>(service_.context()).work_finished(); // counted by the link
    } else {
      op.fail(op.ec);
      done.push_back(op);
    }
    --waiting_;
  }
  if (!done.empty())
    service_.complete(done);
}

bool in_flight::cancel(const connection_impl& on, std::uint64_t id) {
  if (!anyone_waits())
    return false;
  const std::lock_guard guard(mutex_);
  const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                  [&](const auto& w) { return &w->link == &on && w->op.id == id; });
  if (found == waiters_.end())
    return false;
  operation_list done;
  operation& op = (*found)->op;
  placeless_ -= (*found)->needs_place ? 0u : 1u;
  waiters_.erase(found);
  --waiting_;
  op.fail(asio::error::operation_aborted);
  done.push_back(op);
  service_.complete(done);
  run(); // an operation behind it may need no place
  return true;
}

void in_flight::close() {
  const std::lock_guard guard(mutex_);
  closed_ = true;
  run();
}

} // namespace asio_rdma::detail
