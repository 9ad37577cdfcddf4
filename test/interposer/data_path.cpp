// SPDX-License-Identifier: BSL-1.0
// The functions that libibverbs calls through the context's table.
#include "state.hpp"

#include <algorithm>
#include <type_traits>

namespace faults {
namespace {

template <class Request>
unsigned chain_length(const Request* wr) {
  unsigned n = 0;
  for (; wr; wr = wr->next)
    ++n;
  return n;
}

// Posts the requests before the refused one.
template <class Queue, class Request, class Post>
int post_part(const refusal& r, Queue* queue, Request* wr, Request** bad_wr, Post post) {
  if (r.index == unnamed) {
    if constexpr (std::is_same_v<Request, ibv_send_wr>)
      if (const int e = post(queue, wr, bad_wr))
        return e;
    *bad_wr = nullptr;
    return r.error;
  }
  Request* last = nullptr;
  Request* refused = wr;
  for (unsigned i = 0; i < r.index; ++i) {
    last = refused;
    refused = refused->next;
  }
  if (last) {
    last->next = nullptr;
    const int e = post(queue, wr, bad_wr);
    last->next = refused;
    if (e)
      return e;
  }
  *bad_wr = refused;
  return r.error;
}

template <class Queue, class Request>
int post(call which, std::uint32_t qp_num, int (*ibv_context_ops::*op)(Queue*, Request*, Request**),
         Queue* queue, Request* wr, Request** bad_wr) {
  const auto state = state_of(queue->context);
  const auto r = state->check(which, qp_num, -1, chain_length(wr));
  const auto real = state->original.*op;
  return r.error ? post_part(r, queue, wr, bad_wr, real) : real(queue, wr, bad_wr);
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  if (const ibv_send_wr* last = wr; last != nullptr) {
    const auto state = state_of(qp->context);
    const std::lock_guard lock(state->mutex);
    for (;; last = last->next) {
      if (last->opcode == IBV_WR_BIND_MW)
        state->counts.last_bind = last->bind_mw.bind_info;
      if (last->next == nullptr)
        break;
    }
    state->counts.last_send_flags = last->send_flags;
    state->counts.last_send_key = last->num_sge > 0 ? last->sg_list[0].lkey : 0;
  }
  return post(call::post_send, qp->qp_num, &ibv_context_ops::post_send, qp, wr, bad_wr);
}
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return post(call::post_recv, qp->qp_num, &ibv_context_ops::post_recv, qp, wr, bad_wr);
}
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return post(call::post_srq_recv, 0, &ibv_context_ops::post_srq_recv, srq, wr, bad_wr);
}
int poll_cq(ibv_cq* cq, int n, ibv_wc* wc) { return state_of(cq->context)->poll(cq, n, wc); }
int req_notify_cq(ibv_cq* cq, int solicited_only) {
  return state_of(cq->context)->arm(cq, solicited_only);
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  const auto state = state_of(pd->context);
  if (const auto r = state->check(call::alloc_mw); r.error) {
    errno = r.error;
    return nullptr;
  }
  return state->original.alloc_mw(pd, type);
}
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  const auto state = state_of(mw->context);
  const auto r = state->check(call::bind_mw, qp->qp_num);
  return r.error ? r.error : state->original.bind_mw(qp, mw, bind);
}
int dealloc_mw(ibv_mw* mw) {
  const auto state = state_of(mw->context);
  const auto r = state->check(call::dealloc_mw);
  return r.error ? r.error : state->original.dealloc_mw(mw);
}

} // namespace

void context_state::swap_table() {
  std::lock_guard lock(mutex);
  if (swapped)
    return;
  original = context->ops;
  auto& ops = context->ops;
  ops.post_send = faults::post_send;
  ops.post_recv = faults::post_recv;
  ops.post_srq_recv = faults::post_srq_recv;
  ops.poll_cq = faults::poll_cq;
  ops.req_notify_cq = faults::req_notify_cq;
  // Null if the device has no windows: libibverbs checks that.
  if (ops.alloc_mw)
    ops.alloc_mw = faults::alloc_mw;
  if (ops.bind_mw)
    ops.bind_mw = faults::bind_mw;
  if (ops.dealloc_mw)
    ops.dealloc_mw = faults::dealloc_mw;
  swapped = true;
}

void context_state::restore_table_locked() {
  if (!swapped || attached || !context)
    return;
  for (const auto& [cq, s] : cqs)
    if (!s.ready.empty() || !s.held.empty())
      return;
  context->ops = original;
  swapped = false;
}

bool context_state::holds_locked(ibv_cq* cq, const cq_state& s, std::uint32_t qp_num) const {
  // The last poll after the queue pair was destroyed finds its remaining completions; they are not
  // held.
  if (!qps.contains(qp_num))
    return false;
  // A completion behind held ones of its queue pair may not overtake them.
  if (s.plan_hold || qps.at(qp_num).flushing ||
      std::any_of(s.held.begin(), s.held.end(),
                  [&](const ibv_wc& wc) { return wc.qp_num == qp_num; }))
    return true;
  return std::any_of(holds.begin(), holds.end(), [&](const completion_filter& f) {
    return (!f.cq || f.cq == cq) && (!f.qp_num || f.qp_num == qp_num);
  });
}

namespace {

void make_failed(ibv_wc& wc, ibv_wc_status status, std::uint32_t vendor_err) {
  wc.status = status;
  wc.vendor_err = vendor_err;
  if (status != IBV_WC_SUCCESS) { // ibv_poll_cq(3): all but wr_id, status, qp_num and vendor_err
    wc.opcode = static_cast<ibv_wc_opcode>(0x7f);
    wc.byte_len = wc.imm_data = wc.src_qp = 0xdeadbeef;
    wc.wc_flags = 0x7f;
  }
}

} // namespace

// Returns true if the completion comes once more.
bool context_state::rewrite_locked(ibv_wc& wc) {
  const auto known = qps.find(wc.qp_num);
  qp_state* const qp = known == qps.end() ? nullptr : &known->second;
  if (qp && wc.status == IBV_WC_SUCCESS &&
      (wc.opcode & IBV_WC_RECV ? qp->receive_failed : qp->send_failed)) {
    make_failed(wc, IBV_WC_WR_FLUSH_ERR, 0);
    return false;
  }

  std::optional<completion_fault> fault;
  for (auto& rule : completion_rules) {
    const auto& f = rule.fault;
    if (rule.times == 0 || (f.qp_num && f.qp_num != wc.qp_num) ||
        (f.wr_id && f.wr_id != wc.wr_id) || (f.only_successful && wc.status != IBV_WC_SUCCESS))
      continue;
    if (rule.skip) {
      --rule.skip;
      continue;
    }
    if (rule.times != forever)
      --rule.times;
    if (!fault)
      fault = f;
  }
  if (!fault && random && wc.status == IBV_WC_SUCCESS &&
      happens_locked(chance::completion, random->fail_completion)) {
    static constexpr ibv_wc_status causes[] = {
        IBV_WC_LOC_LEN_ERR,       IBV_WC_LOC_QP_OP_ERR,  IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
        IBV_WC_REM_INV_REQ_ERR,   IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,   IBV_WC_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_FATAL_ERR,      IBV_WC_GENERAL_ERR,
    };
    fault.emplace();
    fault->status = causes[draw_locked(chance::status) % std::size(causes)];
  }
  if (!fault)
    return false;
  ++counts.failed_completions;
  if (fault->qp_to_error && qp) {
    if (wc.status == IBV_WC_SUCCESS)
      (wc.opcode & IBV_WC_RECV ? qp->receive_failed : qp->send_failed) = true;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    FAULTS_REAL(ibv_modify_qp)(qp->qp, &attr, IBV_QP_STATE);
  }
  make_failed(wc, fault->status, fault->vendor_err);
  return fault->repeated;
}

int context_state::take_locked(ibv_cq* cq, cq_state& s, int n, ibv_wc* wc) {
  int got = 0;
  while (got < n) {
    const int r = original.poll_cq(cq, n - got, wc + got);
    if (r <= 0)
      return got ? got : r;
    int kept = got;
    for (int i = got; i < got + r; ++i) {
      ibv_wc& w = wc[i];
      if (rewrite_locked(w)) {
        s.ready.push_back(w);
        make_failed(s.ready.back(), IBV_WC_WR_FLUSH_ERR, 0);
      }
      if (!s.plan_hold && random && happens_locked(chance::hold, random->hold_completion))
        s.plan_hold = 1 + static_cast<unsigned>(draw_locked(chance::hold_length) % 4);
      if (holds_locked(cq, s, w.qp_num)) {
        ++counts.held_completions;
        s.held.push_back(w);
      } else {
        wc[kept++] = w;
      }
    }
    got = kept;
  }
  return got;
}

void context_state::pull_locked(ibv_cq* cq, cq_state& s) {
  if (!swapped)
    return;
  std::array<ibv_wc, 16> wc;
  int n;
  while ((n = take_locked(cq, s, static_cast<int>(wc.size()), wc.data())) > 0)
    s.ready.insert(s.ready.end(), wc.begin(), wc.begin() + n);
}

std::size_t context_state::release_locked(ibv_cq* cq, cq_state& s, std::size_t n) {
  n = std::min(n, s.held.size());
  if (!n)
    return 0;
  const auto end = s.held.begin() + static_cast<std::ptrdiff_t>(n);
  s.ready.insert(s.ready.end(), s.held.begin(), end);
  s.held.erase(s.held.begin(), end);
  if (s.armed)
    inject_channel_event_locked(cq);
  return n;
}

std::size_t context_state::release_all_locked() {
  holds.clear();
  std::size_t n = 0;
  for (auto& [cq, s] : cqs) {
    pull_locked(cq, s);
    s.plan_hold = 0;
    n += release_locked(cq, s, s.held.size());
  }
  return n;
}

void context_state::flush_locked(ibv_qp* qp) {
  qp_state& known = qps[qp->qp_num];
  if (!late_flush || qp->srq == nullptr || known.flushing || known.flushed)
    return;
  known.flushing = true;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  event.element.qp = qp;
  inject_async_locked(event);
}

void context_state::flushed_locked(std::uint32_t qp_num) {
  const auto known = qps.find(qp_num);
  if (known == qps.end() || !known->second.flushing)
    return;
  known->second.flushing = false;
  known->second.flushed = true;
  std::erase_if(holds, [&](const completion_filter& f) { return f.qp_num == qp_num; });
  for (auto& [cq, s] : cqs) {
    const auto its = std::stable_partition(s.held.begin(), s.held.end(),
                                           [&](const ibv_wc& wc) { return wc.qp_num == qp_num; });
    release_locked(cq, s, static_cast<std::size_t>(its - s.held.begin()));
  }
}

void context_state::drop_completions_locked(std::uint32_t qp_num) {
  const bool all = late_flush || std::any_of(holds.begin(), holds.end(), [&](const auto& f) {
                     return f.at_destruction && f.qp_num == qp_num;
                   });
  for (auto& [cq, s] : cqs) {
    if (all)
      pull_locked(cq, s);
    for (auto* list : {&s.held, all ? &s.ready : nullptr})
      if (list != nullptr)
        counts.dropped_completions +=
            std::erase_if(*list, [&](const ibv_wc& wc) { return wc.qp_num == qp_num; });
  }
}

int context_state::poll(ibv_cq* cq, int n, ibv_wc* wc) {
  std::lock_guard lock(mutex);
  auto& s = cqs[cq];
  if (const auto r = check_locked(call::poll_cq, 0, -1, 1); r.error)
    return -1;
  int got = 0;
  for (; got < n && !s.ready.empty(); ++got) {
    wc[got] = s.ready.front();
    s.ready.pop_front();
  }
  if (got < n) {
    const int r = take_locked(cq, s, n - got, wc + got);
    if (r < 0 && !got)
      return r;
    got += std::max(r, 0);
  }
  counts.completions += static_cast<std::uint64_t>(got);
  if (!got) {
    ++counts.empty_polls;
    // An armed queue need not be polled again before its event, so a hold ends here.
    if (s.plan_hold && (--s.plan_hold == 0 || s.armed)) {
      s.plan_hold = 0;
      release_locked(cq, s, s.held.size());
    }
  }
  restore_table_locked();
  return got;
}

int context_state::arm(ibv_cq* cq, int solicited_only) {
  std::lock_guard lock(mutex);
  if (const auto r = check_locked(call::req_notify_cq, 0, -1, 1); r.error)
    return r.error;
  auto& s = cqs[cq];
  if (s.plan_hold && draw_locked(chance::hold_end) % 2) {
    s.armed = false;
    s.plan_hold = 0;
    release_locked(cq, s, s.held.size());
  }
  s.armed = true;
  s.solicited_only = solicited_only;
  if (random && happens_locked(chance::spurious, random->spurious_event))
    inject_channel_event_locked(cq);
  return original.req_notify_cq(cq, solicited_only);
}

} // namespace faults
