// SPDX-License-Identifier: BSL-1.0
// Faults that happen to calls, and to the whole device.
#include "device/faults.hpp"

#include "device/queue_pair.hpp"
#include "engine/of_process.hpp"
#include "settings/words.hpp"

#include <cerrno>
#include <cstdlib>
#include <thread>
#include <vector>

namespace soft {
namespace {

bool was_removed(const ibv_context* c) noexcept {
  return needs_attention(is_removed) && device_context::of(const_cast<ibv_context*>(c)).removed;
}

void wait(std::chrono::nanoseconds time) {
  if (time.count() > 0)
    std::this_thread::sleep_for(time);
}

void tell(device_context& c, ibv_event_type what) {
  ibv_async_event e{};
  e.event_type = what;
  e.element.port_num = 1;
  c.events.push(e);
}

void tell_all(ibv_event_type what) {
  device_context::for_all([what](device_context& c) { tell(c, what); });
}

// The removal of the device, as the kernel does it. Its parts lose a device in the reverse order of
// their start: ib_uverbs is loaded before rdma_cm if the driver needs it, as mlx5's does. So the
// ids of rdma_cm get their event first. Then calls fail, and some time later the kernel has
// destroyed all objects, completion channels included, and reports IBV_EVENT_DEVICE_FATAL. Sources:
// disable_device and assign_client_id in drivers/infiniband/core/device.c; cma_process_remove in
// cma.c; ib_uverbs_free_hw_resources in uverbs_main.c, uverbs_destroy_ufile_hw in rdma_core.c
class removal final : public task {
public:
  static removal& get() { return of_process<removal>(); }
  void begin() {
    engine::get().remove(*this); // of a removal that has begun
    ids_last_ = habits().ids_last;
    if (!ids_last_)
      tell_ids([](const device_context&) { return true; });
    step_ = &removal::fail_calls;
    go_on(ids_last_ ? std::chrono::nanoseconds(0) : habits().removal_notice);
  }

private:
  // The time until the next step.
  void go_on(std::chrono::nanoseconds time) {
    if (time.count() == 0)
      run();
    else
      engine::get().schedule_at(*this, clock::now() + time);
  }
  void run() override { (this->*step_)(); }

  void fail_calls() {
    attention |= is_removed;
    device_context::for_all([this](device_context& c) {
      if (ids_last_ || c.is_leaving) // not what was opened since
        c.removed = true;
    });
    step_ = &removal::end_objects;
    go_on(habits().removal);
  }

  void end_objects() {
    queue_pair::for_all([](queue_pair& qp) {
      const device_context& c = device_context::of(qp.qp_base.context);
      if (c.removed && !c.is_told) // not what an earlier removal has left
        qp.cut();
    });
    memory_table::get().end_removed();
    device_context::for_all([](device_context& c) {
      if (!c.removed || c.is_told)
        return;
      c.is_told = true;
      for (channel* const each : c.channels)
        each->events.end();
      tell(c, IBV_EVENT_DEVICE_FATAL);
    });
    tell_ids([](const device_context& c) { return c.removed.load(); });
  }

  // An id may end its connections, so the list of contexts is not locked then.
  template <class Which>
  static void tell_ids(Which which) {
    std::vector<removable*> told;
    device_context::for_all([&](device_context& c) {
      if (c.is_leaving || !which(c))
        return;
      c.is_leaving = true;
      told.insert(told.end(), c.ids.begin(), c.ids.end());
    });
    for (removable* const each : told)
      each->on_removal();
  }

  void (removal::*step_)() = &removal::fail_calls;
  bool ids_last_ = false;
};

// An event of the port or the device.
void raise_in_all(ibv_event_type what) {
  if (what == IBV_EVENT_DEVICE_FATAL && habits().eio_after_removal)
    removal::get().begin();
  else
    tell_all(what);
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
  if (i.flap.count() > 0)
    queue_pair::for_all([&i](queue_pair& qp) { qp.interrupt(i.flap); });
  if (i.event >= 0)
    raise_in_all(static_cast<ibv_event_type>(i.event));
}

int refuse_removed(const ibv_context* c) { return was_removed(c) ? EIO : 0; }

int refuse(const ibv_context* c, place call) {
  if (const int error = refuse_removed(c))
    return error;
  if (!needs_attention(bit_of(call)))
    return 0;
  const incident i = occasion(call);
  wait(i.delay);
  return i.failure;
}

int refuse_connecting() {
  if (!needs_attention(bit_of(place::connect)))
    return 0;
  const incident i = occasion(place::connect);
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
