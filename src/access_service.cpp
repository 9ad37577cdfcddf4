// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/access_service.hpp>

#include <algorithm>

namespace asio_rdma::detail {

asio::execution_context::id access_service::id;

access_service& access_service::of(asio::execution_context& context) {
  return asio::use_service<access_service>(context);
}

std::uint64_t access_service::next_id() {
  const std::lock_guard lock(mutex_);
  return ++last_id_;
}

void access_service::start(access_operation& op) {
  auto how = access_operation::outcome::granted;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      how = access_operation::outcome::destroyed;
    } else if (!op.access.block_->access.begin_or_wait(op)) {
      operations_.push_back(op);
      return;
    }
  }
  op.finish(how);
}

// Posts under the lock, as the context can go when the lock is free: then nothing may be posted to
// it, nor may the handler, which may hold work of the context, be destroyed by anyone but it.
void access_service::granted(access_waiters waiters) noexcept {
  while (!waiters.empty()) {
    auto& op = static_cast<access_operation&>(waiters.front());
    waiters.pop_front();
    access_service& self = op.service;
    const std::lock_guard lock(self.mutex_);
    self.operations_.erase(self.operations_.iterator_to(op));
    if (!self.stopped_) {
      op.finish(access_operation::outcome::granted);
      continue;
    }
    self.dropped_.push_back(op);
    if (self.operations_.empty())
      self.emptied_.notify_all();
  }
}

void access_service::cancel(std::uint64_t which) {
  memory_block_ptr block;
  {
    const std::lock_guard lock(mutex_);
    const auto i = std::find_if(operations_.begin(), operations_.end(),
                                [which](const access_operation& op) { return op.id == which; });
    if (i == operations_.end() || !i->access.block_->access.stop_waiting(*i))
      return;
    access_operation& op = *i;
    block = op.access.block_;
    operations_.erase(i);
    op.finish(access_operation::outcome::aborted);
  }
  granted(block->access.resume());
}

void access_service::shutdown() {
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    for (auto i = operations_.begin(); i != operations_.end();) {
      access_operation& op = *i;
      if (op.access.block_->access.stop_waiting(op)) {
        i = operations_.erase(i);
        dropped_.push_back(op);
      } else {
        ++i;
      }
    }
    // The rest has been granted by other threads, which are on their way to `dropped_`.
    emptied_.wait(lock, [this] { return operations_.empty(); });
  }
  while (!dropped_.empty()) {
    auto& op = static_cast<access_operation&>(dropped_.front());
    dropped_.pop_front();
    const memory_block_ptr block = op.access.block_;
    op.finish(access_operation::outcome::destroyed);
    granted(block->access.resume());
  }
}

} // namespace asio_rdma::detail
