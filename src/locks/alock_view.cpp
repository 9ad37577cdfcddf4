// SPDX-License-Identifier: BSL-1.0
#include "locks/alock_view.hpp"

#include "global/global_memory_impl.hpp"
#include "locks/alock_local.hpp"
#include "locks/alock_remote.hpp"

#include <cassert>

namespace asio_rdma::detail {

alock_view::alock_view(global_memory_impl& memory)
    : service_(memory.service()),
      node_(memory.node()),
      locals_(alock_locals::of(*node_)),
      remotes_(std::make_shared<alock_remotes>(memory)) {}

alock_view::~alock_view() = default;

std::shared_ptr<alock_view> alock_view::of(global_memory_impl* memory) {
  if (memory == nullptr)
    return nullptr;
  return std::static_pointer_cast<alock_view>(
      memory->guest([](global_memory_impl& m) -> std::shared_ptr<memory_guest> {
        return std::make_shared<alock_view>(m);
      }));
}

bool alock_view::start(alock_operation& op) {
  op.service = &service_;
  op.view = this;
  return op.at.node() == node_->id() ? locals_.start(op, node_) : remotes_->start(op);
}

bool alock_view::start_unlock(alock_operation& op, alock_party* held) {
  op.service = &service_;
  op.view = this;
  op.ec = asio::error::invalid_argument;
  if (held == nullptr)
    return false;
  op.ec = asio::error::bad_descriptor;
  return held->unlock(&op);
}

void alock_view::cancel(std::uint64_t id, asio::cancellation_type_t) {
  locals_.cancel(*this, id);
  remotes_->cancel(id);
}

void alock_view::on_next(const connection_impl* way, segment_id segment, std::uint64_t descriptor) {
  remotes_->on_next(way, segment, descriptor);
}

bool alock_view::wait_for(alock_operation& op, std::shared_ptr<alock_parties> others) {
  assert(others != nullptr && op.others == nullptr);
  const std::lock_guard guard(mutex_);
  if (closed_)
    return false;
  service_.operation_starting();
  op.others = std::move(others);
  waits_for_others_.push_back(op);
  return true;
}

// Called with the lock held: once the view is closed, its context may be destroyed.
void alock_view::complete_waiting(alock_operation& op, const error_code& ec) {
  assert(op.view == this && op.others != nullptr);
  const std::lock_guard guard(mutex_);
  waits_for_others_.erase(waits_for_others_.iterator_to(op));
  op.others.reset();
  op.ec = ec;
  operation_list done;
  done.push_back(op);
  service_.complete(done);
}

void alock_view::close() {
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
  }
  locals_.abandon(*this);
  remotes_->close();
  for (;;) {
    std::shared_ptr<alock_parties> others;
    {
      const std::lock_guard guard(mutex_);
      if (waits_for_others_.empty())
        return;
      others = static_cast<alock_operation&>(waits_for_others_.front()).others;
    }
    others->abandon(*this);
  }
}

std::shared_ptr<alock_view> locks_of(global_memory_impl* memory) { return alock_view::of(memory); }
bool start(alock_view& view, alock_operation& op) { return view.start(op); }
bool start_unlock(alock_view& view, alock_operation& op, alock_party* held) {
  return view.start_unlock(op, held);
}
void cancel(alock_view& view, std::uint64_t id, asio::cancellation_type_t type) {
  view.cancel(id, type);
}
std::uint64_t next_id_of(alock_view& view) noexcept { return view.next_id(); }

} // namespace asio_rdma::detail
