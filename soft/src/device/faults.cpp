// SPDX-License-Identifier: BSL-1.0
// Faults that happen to calls, and to the whole device.
#include "device/faults.hpp"

#include "device/queue_pair.hpp"
#include "settings/words.hpp"

#include <thread>

namespace soft {
namespace {

// An event of the port or the device.
void raise_in_all(ibv_event_type what) {
  device_context::for_all([&](device_context& c) {
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

int refuse(place call) {
  if (!needs_attention(bit_of(call)))
    return 0;
  const incident i = occasion(call);
  if (i.delay.count() > 0)
    std::this_thread::sleep_for(i.delay);
  return i.failure;
}

} // namespace soft
