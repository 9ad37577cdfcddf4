// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/in_flight.hpp>

#include "descriptor_watch.hpp"

#include <algorithm>

namespace asio_rdma::detail {

in_flight::in_flight(completion_service& service, std::size_t most)
    : service_(service), free_(most) {}

void in_flight::wait(std::unique_ptr<waiter> w) {
  operation_list done;
  {
    const std::lock_guard guard(mutex_);
    service_.operation_starting();
    ++waiting_;
    waiters_.push_back(std::move(w));
    run(done); // a place may have come back since
  }
  service_.complete(done);
}

void in_flight::start_waiting() {
  operation_list done;
  {
    const std::lock_guard guard(mutex_);
    run(done);
  }
  service_.complete(done);
}

void in_flight::run(operation_list& done) {
  while (!waiters_.empty() && (closed_ || take_free())) {
    const std::unique_ptr<waiter> w = std::move(waiters_.front());
    waiters_.pop_front();
    operation& op = w->op;
    if (closed_)
      op.fail(asio::error::operation_aborted);
    if (!closed_ && w->start()) {
      asio::use_service<scheduler>(service_.context()).work_finished(); // its link counts it
    } else {
      op.fail(op.ec);
      done.push_back(op);
    }
    --waiting_;
  }
}

bool in_flight::cancel(const connection_impl& on, std::uint64_t id) {
  if (waiting_.load() == 0)
    return false;
  operation_list done;
  {
    const std::lock_guard guard(mutex_);
    const auto found = std::find_if(waiters_.begin(), waiters_.end(), [&](const auto& w) {
      return &w->link == &on && w->op.id == id;
    });
    if (found == waiters_.end())
      return false;
    operation& op = (*found)->op;
    waiters_.erase(found);
    --waiting_;
    op.fail(asio::error::operation_aborted);
    done.push_back(op);
  }
  service_.complete(done);
  return true;
}

void in_flight::close() {
  operation_list done;
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    run(done);
  }
  service_.complete(done);
}

} // namespace asio_rdma::detail
