// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/memory/access_service.hpp>

#include "core/ready_runner.hpp"

#include <algorithm>
#include <cassert>

namespace asio_rdma::detail {

asio::execution_context::id access_service::id;

struct access_service::runner final : ready_runner<access_waiters> {
  explicit runner(access_service& s) : ready_runner(s.context(), s.mutex_, s.ready_) {}

private:
  void complete(access_waiter& op) override { static_cast<access_operation&>(op).complete(); }
};

// Contexts of other libraries have no scheduler, and a scheduler that was made here would never
// run.
access_service::access_service(asio::execution_context& context)
    : asio::execution_context::service(context) {
  if (asio::has_service<scheduler>(context))
    runner_ = std::make_unique<runner>(*this);
}

access_service::~access_service() = default;

access_service& access_service::of(asio::execution_context& context) {
  return asio::use_service<access_service>(context);
}

std::uint64_t access_service::next_id() {
  const std::lock_guard lock(mutex_);
  return ++last_id_;
}

void access_service::start(access_operation& op) {
  assert(&op.service == this && op.access.block_ != nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (op.id == 0)
      op.id = ++last_id_;
    if (!stopped_) {
      if (op.access.block_->access.begin_or_wait(op))
        make_ready(op);
      else
        operations_.push_back(op);
      return;
    }
  }
  op.destroy();
}

// Called with the lock held: once the lock is free, the context may be destroyed. Nothing may be
// queued in a destroyed context. Handlers may hold work of the context, so only the context may
// destroy them. If its executor fails, an operation stays ready until the next operation becomes
// ready or the context shuts down.
void access_service::make_ready(access_operation& op) noexcept {
  ready_.push_back(op);
  if (runner_ != nullptr)
    return runner_->queue();
  for (access_waiter& waiter : ready_) {
    auto& one = static_cast<access_operation&>(waiter);
    if (one.announced)
      continue;
    try {
      one.announce();
    } catch (...) {
      return;
    }
    one.announced = true;
  }
}

void access_service::granted(access_waiters waiters) noexcept {
  while (!waiters.empty()) {
    auto& op = static_cast<access_operation&>(waiters.front());
    waiters.pop_front();
    access_service& self = op.service;
    const std::lock_guard lock(self.mutex_);
    self.operations_.erase(self.operations_.iterator_to(op));
    if (!self.stopped_) {
      self.make_ready(op);
      continue;
    }
    self.dropped_.push_back(op);
    if (self.operations_.empty())
      self.emptied_.notify_all();
  }
}

void access_service::run(std::uint64_t which) {
  access_operation* op = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto i = std::find_if(ready_.begin(), ready_.end(), [which](const access_waiter& w) {
      return static_cast<const access_operation&>(w).id == which;
    });
    if (i == ready_.end())
      return;
    op = &static_cast<access_operation&>(*i);
    ready_.erase(i);
  }
  op->complete();
}

memory_block_ptr access_service::cancel(std::uint64_t which) {
  memory_block_ptr block;
  {
    const std::lock_guard lock(mutex_);
    const auto i = std::find_if(operations_.begin(), operations_.end(),
                                [which](const access_operation& op) { return op.id == which; });
    if (i == operations_.end() || !i->access.block_->access.stop_waiting(*i))
      return block;
    access_operation& op = *i;
    block = op.access.block_;
    operations_.erase(i);
    op.aborted = true;
    make_ready(op);
  }
  granted(block->access.resume());
  return block;
}

void access_service::shutdown() {
  {
    const std::lock_guard lock(link_->mutex);
    link_->service = nullptr;
  }
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    dropped_.splice(dropped_.end(), ready_);
    for (auto i = operations_.begin(); i != operations_.end();) {
      access_operation& op = *i;
      if (op.access.block_->access.stop_waiting(op)) {
        i = operations_.erase(i);
        dropped_.push_back(op);
      } else {
        ++i;
      }
    }
    // Other threads have been granted the remaining operations and are about to add them to
    // `dropped_`.
    emptied_.wait(lock, [this] { return operations_.empty(); });
  }
  while (!dropped_.empty()) {
    auto& op = static_cast<access_operation&>(dropped_.front());
    dropped_.pop_front();
    const memory_block_ptr block = op.access.block_;
    op.destroy();
    granted(block->access.resume());
  }
}

} // namespace asio_rdma::detail
