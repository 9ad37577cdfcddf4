// SPDX-License-Identifier: BSL-1.0
// Faults that happen to calls, and to the whole device.
#include "device/faults.hpp"

#include "device/queue_pair.hpp"
#include "settings/words.hpp"

#include <cerrno>
#include <cstdlib>
#include <thread>

namespace soft {
namespace {

bool was_removed(const ibv_context* c) noexcept {
  return needs_attention(is_removed) && device_context::of(const_cast<ibv_context*>(c)).removed;
}

void wait(std::chrono::nanoseconds time) {
  if (time.count() > 0)
    std::this_thread::sleep_for(time);
}

// An event of the port or the device.
void raise_in_all(ibv_event_type what) {
  const bool removes = what == IBV_EVENT_DEVICE_FATAL && habits().eio_after_removal;
  if (removes)
    attention |= is_removed;
  device_context::for_all([&](device_context& c) {
    if (removes)
      c.removed = true;
    ibv_async_event e{};
    e.event_type = what;
    e.element.port_num = 1;
    c.events.push(e);
  });
}

} // namespace

void raise_event(queue_pair& qp, ibv_event_type what) {
  if (words::is_about_device(what))
    return raise_in_all(what);
  if (what != IBV_EVENT_CQ_ERR)
    return qp.tell(what);
  ibv_async_event e{};
  e.event_type = what;
  e.element.cq = qp.qp_base.send_cq;
  device_context::of(qp.qp_base.context).events.push(e);
}

void happen_now() {
  const engine::lock_guard lock(engine::get());
  const incident i = occasion(place::now);
  if (i.kill)
    queue_pair::for_all([](queue_pair& qp) { qp.kill_peer(); });
  if (i.drop)
    queue_pair::for_all([](queue_pair& qp) { qp.cut(); });
  if (i.event >= 0)
    raise_in_all(static_cast<ibv_event_type>(i.event));
}

int refuse(const ibv_context* c, place call) {
  if (was_removed(c))
    return EIO;
  if (!needs_attention(bit_of(call)))
    return 0;
  const incident i = occasion(call);
  wait(i.delay);
  return i.failure;
}

int refuse_creation(const ibv_context* c, place call) {
  const int error = refuse(c, call);
  if (error == 0)
    wait(habits().create);
  return error;
}

int refuse_destruction(const ibv_context* c) {
  if (was_removed(c))
    return std::getenv("RDMAV_ALLOW_DISASSOC_DESTROY") != nullptr ? 0 : EIO;
  wait(habits().destroy);
  return 0;
}

} // namespace soft
