// SPDX-License-Identifier: BSL-1.0
// Completion channels and asynchronous events: real ones and injected ones behind one descriptor.
#include "state.hpp"

#include <rdma/ib_user_verbs.h>
#include <unistd.h>

#include <algorithm>

namespace faults {

void link_event_functions() {}

void context_state::inject_channel_event_locked(ibv_cq* cq) {
  const auto i = channels.find(cq->channel);
  if (i == channels.end())
    return;
  cqs[cq].armed = false;
  i->second->injected.push_back(cq);
  i->second->merged.signal();
  ++counts.channel_events_injected;
}

void context_state::inject_async_locked(const ibv_async_event& e) {
  if (!async)
    return;
  // Reading an event allocates nothing, as by the device's own library.
  async_injected_unacked.reserve(async_injected_unacked.size() + async_injected.size() + 1);
  async_injected.push_back(e);
  async->signal();
}

namespace {

// Whether the caller may see an event that was read from the device.
bool visible_locked(context_state& state, ibv_cq* cq, cq_state& s) {
  const auto discard = [&] {
    FAULTS_REAL(ibv_ack_cq_events)(cq, 1);
    --s.real_unacked;
    return false;
  };
  ++s.real_unacked;
  if (state.swapped && (s.plan_hold || !state.holds.empty() || !s.held.empty())) {
    state.pull_locked(cq, s);
    if (s.ready.empty() && !s.held.empty()) {
      // A held completion does not exist for the caller, so the queue must still be armed.
      discard();
      state.original.req_notify_cq(cq, s.solicited_only);
      state.pull_locked(cq, s);
      if (!s.ready.empty())
        state.inject_channel_event_locked(cq);
      return false;
    }
  }
  s.armed = false;
  if (state.lose || (state.attached && state.random &&
                     state.happens_locked(chance::lose, state.random->lose_event))) {
    if (state.lose)
      --state.lose;
    ++state.counts.channel_events_lost;
    return discard();
  }
  return true;
}

enum class outcome { event, nothing, error };

outcome next_channel_event(context_state& state, channel_state& channel, ibv_cq** cq,
                           void** cq_context) {
  std::lock_guard lock(state.mutex);
  for (;;) {
    if (!channel.injected.empty()) {
      *cq = channel.injected.front();
      channel.injected.pop_front();
      if (channel.injected.empty())
        channel.merged.clear();
      if (state.lose) {
        --state.lose;
        ++state.counts.channel_events_lost;
        continue;
      }
      *cq_context = (*cq)->cq_context;
      ++state.cqs[*cq].injected_unacked;
      ++state.counts.channel_events;
      return outcome::event;
    }
    if (FAULTS_REAL(ibv_get_cq_event)(channel.real, cq, cq_context))
      return errno == EAGAIN ? outcome::nothing : outcome::error;
    if (visible_locked(state, *cq, state.cqs[*cq])) {
      ++state.counts.channel_events;
      return outcome::event;
    }
  }
}

outcome next_async_event(context_state& state, ibv_async_event* event) {
  std::unique_lock lock(state.mutex);
  if (!state.async_injected.empty()) {
    *event = state.async_injected.front();
    state.async_injected.pop_front();
    if (state.async_injected.empty())
      state.async->clear();
    state.async_injected_unacked.push_back(*event);
    if (event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
      state.flushed_locked(event->element.qp->qp_num);
    ++state.counts.async_events;
    return outcome::event;
  }
  lock.unlock();
  {
    const real_async_fd fd(state);
    if (FAULTS_REAL(ibv_get_async_event)(state.context, event))
      return errno == EAGAIN ? outcome::nothing : outcome::error;
  }
  lock.lock();
  state.async_real_unacked.push_back(*event);
  ++state.counts.async_events;
  return outcome::event;
}

bool erase_event(std::vector<ibv_async_event>& events, const ibv_async_event& e) {
  const auto i =
      std::find_if(events.begin(), events.end(), [&](const auto& x) { return same_element(x, e); });
  if (i == events.end())
    return false;
  events.erase(i);
  return true;
}

template <class Next, class Wait>
int read_event(Next next, Wait wait) {
  for (;;) {
    switch (next()) {
    case outcome::event:
      return 0;
    case outcome::error:
      return -1;
    case outcome::nothing:
      if (!wait())
        return -1;
    }
  }
}

} // namespace
} // namespace faults

using namespace faults;

FAULTS_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  ibv_context* context = FAULTS_REAL(ibv_open_device)(device);
  if (context) {
    const auto state = state_of(context);
    std::lock_guard lock(state->mutex);
    state->async = std::make_unique<merged_descriptor>(context->async_fd);
    state->async_real_unacked.reserve(64); // reading an event allocates nothing
    context->async_fd = state->async->fd();
    swap_extended(context);
  }
  return context;
}

FAULTS_EXPORT int ibv_close_device(ibv_context* context) {
  const auto state = state_of(context);
  {
    std::lock_guard lock(state->mutex);
    if (state->swapped)
      context->ops = state->original;
    state->swapped = false;
    if (state->async)
      context->async_fd = state->async->real();
    state->async.reset();
    state->context = nullptr;
  }
  forget(context);
  forget_extended(context);
  return FAULTS_REAL(ibv_close_device)(context);
}

FAULTS_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const auto state = state_of(context);
  if (!state->async)
    return FAULTS_REAL(ibv_get_async_event)(context, event);
  return read_event([&] { return next_async_event(*state, event); },
                    [&] { return state->async->wait(); });
}

FAULTS_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  // libibverbs counts what is acknowledged and waits for as many as the kernel reported.
  bool not_the_kernels = false;
  // An event does not name its context.
  static_cast<void>(find_state([&](context_state& state) {
    std::lock_guard lock(state.mutex);
    not_the_kernels = erase_event(state.async_injected_unacked, *event) ||
                      erase_event(state.async_forgiven, *event);
    if (!not_the_kernels && !erase_event(state.async_real_unacked, *event))
      return false;
    ++state.counts.async_events_acked;
    state.acknowledged.notify_all();
    return true;
  }));
  if (not_the_kernels)
    return;
  FAULTS_REAL(ibv_ack_async_event)(event);
}

FAULTS_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const auto state = state_of(context);
  if (const auto r = state->check(call::create_comp_channel); r.error) {
    errno = r.error;
    return nullptr;
  }
  ibv_comp_channel* real = FAULTS_REAL(ibv_create_comp_channel)(context);
  if (!real)
    return nullptr;
  auto channel = std::make_unique<channel_state>(real);
  channel->facade = {context, channel->merged.fd(), 0};
  std::lock_guard lock(state->mutex);
  ibv_comp_channel* facade = &channel->facade;
  state->channels.emplace(facade, std::move(channel));
  return facade;
}

FAULTS_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* facade) {
  const auto state = state_of(facade->context);
  if (const auto r = state->check(call::destroy_comp_channel); r.error)
    return r.error;
  std::unique_lock lock(state->mutex);
  const auto i = state->channels.find(facade);
  if (i == state->channels.end()) {
    lock.unlock();
    return FAULTS_REAL(ibv_destroy_comp_channel)(facade);
  }
  if (facade->refcnt)
    return EBUSY;
  const int e = FAULTS_REAL(ibv_destroy_comp_channel)(i->second->real);
  if (!e)
    state->channels.erase(i);
  return e;
}

FAULTS_EXPORT int ibv_get_cq_event(ibv_comp_channel* facade, ibv_cq** cq, void** cq_context) {
  const auto state = state_of(facade->context);
  channel_state* channel = nullptr;
  {
    std::lock_guard lock(state->mutex);
    if (const auto i = state->channels.find(facade); i != state->channels.end())
      channel = i->second.get();
  }
  if (!channel)
    return FAULTS_REAL(ibv_get_cq_event)(facade, cq, cq_context);
  return read_event([&] { return next_channel_event(*state, *channel, cq, cq_context); },
                    [&] { return channel->merged.wait(); });
}

FAULTS_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned n) {
  const auto state = state_of(cq->context);
  std::lock_guard lock(state->mutex);
  auto& s = state->cqs[cq];
  state->counts.channel_events_acked += n;
  ++state->counts.channel_ack_calls;
  for (auto* not_the_kernels : {&s.injected_unacked, &s.forgiven}) {
    const auto m = static_cast<unsigned>(std::min<std::uint64_t>(n, *not_the_kernels));
    *not_the_kernels -= m;
    n -= m;
  }
  state->acknowledged.notify_all();
  if (n) {
    s.real_unacked -= std::min<std::uint64_t>(n, s.real_unacked);
    FAULTS_REAL(ibv_ack_cq_events)(cq, n);
  }
}
