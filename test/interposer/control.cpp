// SPDX-License-Identifier: BSL-1.0
// The control functions that libibverbs exports, and those that it calls through the extended
// table.
#include "state.hpp"

#include <algorithm>
#include <utility>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace faults {

void link_control_functions() {}

namespace {
thread_local std::uint64_t registered_here = 0;
}

std::uint64_t bytes_registered_here() { return registered_here; }

namespace {

// libibverbs calls some of its exported functions from others; only the outermost call counts.
thread_local unsigned depth = 0;
struct nested {
  nested() { ++depth; }
  ~nested() { --depth; }
};

template <class Make>
auto make(ibv_context* context, call which, Make real) -> decltype(real(*state_of(context))) {
  const auto state = state_of(context);
  if (!depth) {
    if (const auto r = state->check(which); r.error) {
      errno = r.error;
      return nullptr;
    }
  }
  const nested n;
  return real(*state);
}

template <class Make>
ibv_mr* register_bytes(ibv_pd* pd, std::size_t length, Make real) {
  const bool outermost = depth == 0;
  ibv_mr* const made = make(pd->context, call::reg_mr, real);
  if (made != nullptr && outermost)
    registered_here += length;
  return made;
}

template <class Do>
int act(ibv_context* context, call which, std::uint32_t qp_num, int qp_state, Do real) {
  const auto state = state_of(context);
  if (!depth) {
    if (const auto r = state->check(which, qp_num, qp_state); r.error)
      return r.error;
  }
  const nested n;
  return real(*state);
}

// The kernel knows the real channel only; the completion queue shows the caller's channel.
ibv_comp_channel* real_channel(context_state& state, ibv_comp_channel* facade) {
  std::lock_guard lock(state.mutex);
  const auto i = state.channels.find(facade);
  return i == state.channels.end() ? facade : i->second->real;
}
ibv_cq* adopt(context_state& state, ibv_cq* cq, ibv_comp_channel* facade) {
  if (!cq)
    return cq;
  std::lock_guard lock(state.mutex);
  state.cqs[cq];
  if (const auto i = state.channels.find(facade);
      i != state.channels.end() && cq->channel == i->second->real) {
    --i->second->real->refcnt;
    ++facade->refcnt;
    cq->channel = facade;
  }
  return cq;
}
ibv_qp* adopt(context_state& state, ibv_qp* qp) {
  if (qp) {
    std::lock_guard lock(state.mutex);
    state.qps[qp->qp_num] = {qp};
  }
  return qp;
}

template <class Match>
void forget_async(context_state& state, std::unique_lock<std::mutex>& lock, Match match) {
  auto& injected = state.async_injected;
  injected.erase(std::remove_if(injected.begin(), injected.end(), match), injected.end());
  if (injected.empty() && state.async)
    state.async->clear();
  auto& unacked = state.async_injected_unacked;
  const auto& kernels = state.async_real_unacked;
  state.acknowledged.wait_for(lock, state.patience, [&] {
    return std::none_of(unacked.begin(), unacked.end(), match) &&
           std::none_of(kernels.begin(), kernels.end(), match);
  });
  const auto end = std::remove_if(unacked.begin(), unacked.end(), match);
  state.counts.unacknowledged_at_destroy += static_cast<std::uint64_t>(unacked.end() - end);
  unacked.erase(end, unacked.end());
  for (auto i = state.async_real_unacked.begin(); i != state.async_real_unacked.end();) {
    if (match(*i)) {
      ++state.counts.unacknowledged_at_destroy;
      FAULTS_REAL(ibv_ack_async_event)(&*i);
      state.async_forgiven.push_back(*i);
      i = state.async_real_unacked.erase(i);
    } else {
      ++i;
    }
  }
}

auto about(ibv_qp* qp) {
  return [qp](const ibv_async_event& e) {
    ibv_async_event same = e;
    same.element.qp = qp;
    return e.event_type != IBV_EVENT_CQ_ERR && e.event_type != IBV_EVENT_SRQ_ERR &&
           e.event_type != IBV_EVENT_SRQ_LIMIT_REACHED && e.event_type != IBV_EVENT_DEVICE_FATAL &&
           e.element.qp == qp && same_element(e, same);
  };
}
auto about(ibv_cq* cq) {
  return [cq](const ibv_async_event& e) {
    return e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == cq;
  };
}
auto about(ibv_srq* srq) {
  return [srq](const ibv_async_event& e) {
    return (e.event_type == IBV_EVENT_SRQ_ERR || e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) &&
           e.element.srq == srq;
  };
}

// The functions of the extended table are the same for all contexts of a driver, but one process
// may use several drivers.
struct extended {
  decltype(verbs_context::create_cq_ex) create_cq_ex = nullptr;
  decltype(verbs_context::create_qp_ex) create_qp_ex = nullptr;
  decltype(verbs_context::create_srq_ex) create_srq_ex = nullptr;
};
std::mutex extended_mutex;
std::unordered_map<ibv_context*, extended> extended_tables;

extended extended_of(ibv_context* context) {
  std::lock_guard lock(extended_mutex);
  return extended_tables[context];
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  return make(context, call::create_cq, [&](context_state& state) {
    const real_async_fd fd(state);
    auto real = *attr;
    real.channel = real_channel(state, attr->channel);
    ibv_cq_ex* cq = extended_of(context).create_cq_ex(context, &real);
    if (cq)
      adopt(state, ibv_cq_ex_to_cq(cq), attr->channel);
    return cq;
  });
}
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  return make(context, call::create_qp, [&](context_state& state) {
    const real_async_fd fd(state);
    return adopt(state, extended_of(context).create_qp_ex(context, attr));
  });
}
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  return make(context, call::create_srq, [&](context_state& state) {
    const real_async_fd fd(state);
    return extended_of(context).create_srq_ex(context, attr);
  });
}

// Finds a member as libibverbs' inline functions do: the library may be older than the header.
template <class Function, class Ours>
Function swap_member(ibv_context* context, Function verbs_context::*member, Ours ours) {
  verbs_context* const table = verbs_get_ctx(context);
  if (!table)
    return nullptr;
  Function& slot = table->*member;
  const auto to_end =
      reinterpret_cast<std::uintptr_t>(table + 1) - reinterpret_cast<std::uintptr_t>(&slot);
  if (table->sz < to_end || !slot)
    return nullptr;
  return std::exchange(slot, ours);
}

} // namespace

void swap_extended(ibv_context* context) {
  extended real;
  real.create_cq_ex = swap_member(context, &verbs_context::create_cq_ex, create_cq_ex);
  real.create_qp_ex = swap_member(context, &verbs_context::create_qp_ex, create_qp_ex);
  real.create_srq_ex = swap_member(context, &verbs_context::create_srq_ex, create_srq_ex);
  std::lock_guard lock(extended_mutex);
  extended_tables[context] = real;
}

void forget_extended(ibv_context* context) {
  std::lock_guard lock(extended_mutex);
  extended_tables.erase(context);
}

} // namespace faults

using namespace faults;

FAULTS_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  return make(context, call::alloc_pd, [&](auto&) { return FAULTS_REAL(ibv_alloc_pd)(context); });
}
FAULTS_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  return act(pd->context, call::dealloc_pd, 0, -1,
             [&](auto&) { return FAULTS_REAL(ibv_dealloc_pd)(pd); });
}

FAULTS_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
  return register_bytes(
      pd, length, [&](auto&) { return FAULTS_REAL(ibv_reg_mr)(pd, address, length, access); });
}
FAULTS_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length,
                                      std::uint64_t iova, int access) {
  return register_bytes(pd, length, [&](auto&) {
    return FAULTS_REAL(ibv_reg_mr_iova)(pd, address, length, iova, access);
  });
}
FAULTS_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length,
                                       std::uint64_t iova, unsigned access) {
  return register_bytes(pd, length, [&](auto&) {
    return FAULTS_REAL(ibv_reg_mr_iova2)(pd, address, length, iova, access);
  });
}
FAULTS_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length,
                                        std::uint64_t iova, int fd, int access) {
  return register_bytes(pd, length, [&](auto&) {
    return FAULTS_REAL(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
  });
}
FAULTS_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  return act(mr->context, call::dereg_mr, 0, -1,
             [&](auto&) { return FAULTS_REAL(ibv_dereg_mr)(mr); });
}

FAULTS_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                    ibv_comp_channel* channel, int vector) {
  return make(context, call::create_cq, [&](context_state& state) {
    const real_async_fd fd(state);
    return adopt(
        state,
        FAULTS_REAL(ibv_create_cq)(context, cqe, cq_context, real_channel(state, channel), vector),
        channel);
  });
}
FAULTS_EXPORT int ibv_resize_cq(ibv_cq* cq, int cqe) {
  return act(cq->context, call::resize_cq, 0, -1,
             [&](auto&) { return FAULTS_REAL(ibv_resize_cq)(cq, cqe); });
}
FAULTS_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  return act(cq->context, call::destroy_cq, 0, -1, [&](context_state& state) {
    {
      std::unique_lock lock(state.mutex);
      auto& s = state.cqs[cq];
      if (const auto i = state.channels.find(cq->channel); i != state.channels.end()) {
        auto& injected = i->second->injected;
        injected.erase(std::remove(injected.begin(), injected.end(), cq), injected.end());
        if (injected.empty())
          i->second->merged.clear();
      }
      state.acknowledged.wait_for(lock, state.patience,
                                  [&] { return !s.real_unacked && !s.injected_unacked; });
      state.counts.unacknowledged_at_destroy += s.real_unacked + s.injected_unacked;
      if (s.real_unacked)
        FAULTS_REAL(ibv_ack_cq_events)(cq, static_cast<unsigned>(s.real_unacked));
      s.forgiven += s.real_unacked;
      s.real_unacked = 0;
      forget_async(state, lock, about(cq));
    }
    const int e = FAULTS_REAL(ibv_destroy_cq)(cq);
    if (!e) {
      std::lock_guard lock(state.mutex);
      state.cqs.erase(cq);
      state.restore_table_locked();
    }
    return e;
  });
}

FAULTS_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  return make(pd->context, call::create_srq, [&](context_state& state) {
    const real_async_fd fd(state);
    return FAULTS_REAL(ibv_create_srq)(pd, attr);
  });
}
FAULTS_EXPORT int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  return act(srq->context, call::modify_srq, 0, -1,
             [&](auto&) { return FAULTS_REAL(ibv_modify_srq)(srq, attr, mask); });
}
FAULTS_EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  return act(srq->context, call::destroy_srq, 0, -1, [&](context_state& state) {
    {
      std::unique_lock lock(state.mutex);
      forget_async(state, lock, about(srq));
    }
    return FAULTS_REAL(ibv_destroy_srq)(srq);
  });
}

FAULTS_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  return make(pd->context, call::create_qp, [&](context_state& state) {
    const real_async_fd fd(state);
    return adopt(state, FAULTS_REAL(ibv_create_qp)(pd, attr));
  });
}
FAULTS_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  return act(qp->context, call::modify_qp, qp->qp_num, mask & IBV_QP_STATE ? attr->qp_state : -1,
             [&](context_state& state) {
               const int e = FAULTS_REAL(ibv_modify_qp)(qp, attr, mask);
               if (!e && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET) {
                 std::lock_guard lock(state.mutex);
                 state.qps[qp->qp_num] = {qp};
               }
               if (!e && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR) {
                 std::lock_guard lock(state.mutex);
                 state.flush_locked(qp);
               }
               return e;
             });
}
FAULTS_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  return act(qp->context, call::query_qp, qp->qp_num, -1,
             [&](auto&) { return FAULTS_REAL(ibv_query_qp)(qp, attr, mask, init); });
}
FAULTS_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  return act(qp->context, call::destroy_qp, qp->qp_num, -1, [&](context_state& state) {
    const auto number = qp->qp_num;
    {
      std::unique_lock lock(state.mutex);
      forget_async(state, lock, about(qp));
      state.qps.erase(number);
    }
    const int e = FAULTS_REAL(ibv_destroy_qp)(qp);
    std::lock_guard lock(state.mutex);
    if (e) {
      state.qps[number] = {qp};
      return e;
    }
    state.drop_completions_locked(number);
    state.restore_table_locked();
    return e;
  });
}

FAULTS_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  return make(pd->context, call::create_ah,
              [&](auto&) { return FAULTS_REAL(ibv_create_ah)(pd, attr); });
}
