// SPDX-License-Identifier: BSL-1.0
#include "device/receive_queue.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

namespace soft {

int receive_queue::post(ibv_recv_wr* first, ibv_recv_wr** bad) noexcept {
  int error = 0;
  {
    std::lock_guard lock(posting_);
    for (; first != nullptr; first = first->next) {
      if (first->num_sge < 0 || static_cast<unsigned>(first->num_sge) > elements_) {
        error = EINVAL;
        break;
      }
      receive_work* const r = ring_.place();
      if (r == nullptr) {
        error = ENOMEM;
        break;
      }
      r->wr_id = first->wr_id;
      r->count = static_cast<std::uint32_t>(first->num_sge);
      if (r->count != 0)
        std::memcpy(r->elements(), first->sg_list, r->count * sizeof(ibv_sge));
      ring_.add();
    }
  }
  if (error != 0 && bad != nullptr)
    *bad = first;
  if (wanted_.load())
    engine::get().schedule(*this);
  return error;
}

// The ring is looked at again after `wanted_` is set: a receive that was posted in between is seen
// here, or its thread sees `wanted_`.
void receive_queue::wait(receive_waiter& w) {
  w.stop();
  w.at_ = this;
  waiting_.insert(&w);
  wanted_ = true;
  if (ring_.front() != nullptr)
    engine::get().schedule(*this);
}

void receive_queue::wake() {
  wanted_ = false;
  for (receive_waiter* const w : std::exchange(waiting_, {})) {
    w->at_ = nullptr;
    engine::get().schedule(w->task_);
  }
}

void receive_queue::close() {
  engine::get().remove(*this);
  wake();
}

void receive_waiter::stop() {
  if (at_ != nullptr)
    std::exchange(at_, nullptr)->waiting_.erase(this);
}

void shared_queue::taken() {
  if (limit == 0 || receives.size() >= limit)
    return;
  limit = 0;
  ibv_async_event e{};
  e.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  e.element.srq = this;
  device_context::of(context).events.push(e);
}

} // namespace soft
