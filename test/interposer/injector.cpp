// SPDX-License-Identifier: BSL-1.0
#include "state.hpp"

#include <cstdlib>
#include <ostream>
#include <random>
#include <stdexcept>
#include <utility>

namespace faults {

const char* name(call which) {
  static constexpr const char* names[] = {
      "post_send",
      "post_recv",
      "post_srq_recv",
      "poll_cq",
      "req_notify_cq",
      "alloc_pd",
      "dealloc_pd",
      "reg_mr",
      "dereg_mr",
      "create_comp_channel",
      "destroy_comp_channel",
      "create_cq",
      "resize_cq",
      "destroy_cq",
      "create_srq",
      "modify_srq",
      "destroy_srq",
      "create_qp",
      "modify_qp",
      "destroy_qp",
      "query_qp",
      "alloc_mw",
      "bind_mw",
      "dealloc_mw",
      "create_ah",
  };
  static_assert(std::size(names) == static_cast<std::size_t>(call::count_));
  return names[static_cast<std::size_t>(which)];
}

std::ostream& operator<<(std::ostream& out, const plan& p) {
  out << "ASIO_RDMA_FAULT_SEED=" << p.seed;
  const std::pair<const char*, double> chances[] = {
      {"refuse_send", p.refuse_send},
      {"refuse_receive", p.refuse_receive},
      {"fail_completion", p.fail_completion},
      {"hold_completion", p.hold_completion},
      {"spurious_event", p.spurious_event},
      {"lose_event", p.lose_event},
      {"fail_registration", p.fail_registration},
      {"fail_creation", p.fail_creation},
      {"fail_modify_qp", p.fail_modify_qp},
  };
  for (const auto& [what, probability] : chances)
    if (probability > 0)
      out << ' ' << what << ' ' << probability;
  return out;
}

std::uint64_t seed_from_environment() {
  if (const char* value = std::getenv("ASIO_RDMA_FAULT_SEED"))
    return std::stoull(value);
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

injector::injector(ibv_context* context) : context_(context), state_(state_of(context)) {
  link_control_functions();
  link_event_functions();
  {
    std::lock_guard lock(state_->mutex);
    if (state_->attached)
      throw std::logic_error("faults: the context has an injector already");
    state_->attached = true;
    state_->counts = {};
    // The injector has not seen whether they are armed. A superfluous event does no harm.
    for (auto& [cq, s] : state_->cqs)
      s.armed = true;
  }
  state_->swap_table();
}

injector::~injector() {
  clear();
  std::lock_guard lock(state_->mutex);
  state_->attached = false;
  state_->restore_table_locked();
}

void injector::fail(call which, int error, occurrence when, std::uint32_t qp_num) {
  std::lock_guard lock(state_->mutex);
  state_->rules.push_back({which, error, when.first - 1, when.times, 0, false, qp_num, -1});
}

void injector::fail_modify_qp(ibv_qp_state to, int error, occurrence when) {
  std::lock_guard lock(state_->mutex);
  state_->rules.push_back({call::modify_qp, error, when.first - 1, when.times, 0, false, 0, to});
}

void injector::refuse_post(call which, int error, occurrence when, unsigned index,
                           std::uint32_t qp_num) {
  std::lock_guard lock(state_->mutex);
  state_->rules.push_back({which, error, when.first - 1, when.times, index, true, qp_num, -1});
}

void injector::fail_post_unnamed(call which, int error, occurrence when, std::uint32_t qp_num) {
  std::lock_guard lock(state_->mutex);
  state_->rules.push_back({which, error, when.first - 1, when.times, unnamed, false, qp_num, -1});
}

void injector::fail_completion(const completion_fault& fault) {
  std::lock_guard lock(state_->mutex);
  state_->completion_rules.push_back({fault, fault.when.first - 1, fault.when.times});
}

void injector::hold_completions(completion_filter filter) {
  std::lock_guard lock(state_->mutex);
  state_->holds.push_back(filter);
}

std::size_t injector::release_completions(std::size_t n) {
  std::lock_guard lock(state_->mutex);
  std::size_t released = 0;
  for (auto& [cq, s] : state_->cqs) {
    state_->pull_locked(cq, s);
    released += state_->release_locked(cq, s, n - released);
  }
  return released;
}

std::size_t injector::release_completions() {
  std::lock_guard lock(state_->mutex);
  return state_->release_all_locked();
}

std::size_t injector::held() {
  std::lock_guard lock(state_->mutex);
  std::size_t n = 0;
  for (auto& [cq, s] : state_->cqs) {
    state_->pull_locked(cq, s);
    n += s.held.size();
  }
  return n;
}

void injector::flush_late() {
  std::lock_guard lock(state_->mutex);
  state_->late_flush = true;
}

void injector::lose_channel_events(unsigned n) {
  std::lock_guard lock(state_->mutex);
  state_->lose += n;
}

void injector::raise_channel_event(ibv_cq* cq) {
  std::lock_guard lock(state_->mutex);
  state_->inject_channel_event_locked(cq);
}

void injector::raise_qp_event(ibv_qp* qp, ibv_event_type type) {
  std::lock_guard lock(state_->mutex);
  if (type == IBV_EVENT_QP_FATAL) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    FAULTS_REAL(ibv_modify_qp)(qp, &attr, IBV_QP_STATE);
  }
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = qp;
  state_->inject_async_locked(event);
}

void injector::raise_cq_error(ibv_cq* cq) {
  std::lock_guard lock(state_->mutex);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = cq;
  state_->inject_async_locked(event);
}

void injector::raise_srq_event(ibv_srq* srq, ibv_event_type type) {
  std::lock_guard lock(state_->mutex);
  ibv_async_event event{};
  event.event_type = type;
  event.element.srq = srq;
  state_->inject_async_locked(event);
}

void injector::raise_port_event(ibv_event_type type, int port) {
  std::lock_guard lock(state_->mutex);
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  state_->inject_async_locked(event);
}

void injector::raise_device_fatal() {
  std::lock_guard lock(state_->mutex);
  state_->dead = true;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  state_->inject_async_locked(event);
}

void injector::set_patience(std::chrono::milliseconds patience) {
  std::lock_guard lock(state_->mutex);
  state_->patience = patience;
}

void injector::run(const plan& p) {
  std::lock_guard lock(state_->mutex);
  state_->random = p;
  state_->drawn = {};
}

void injector::clear() {
  std::lock_guard lock(state_->mutex);
  state_->rules.clear();
  state_->completion_rules.clear();
  state_->random.reset();
  state_->lose = 0;
  state_->dead = state_->late_flush = false;
  state_->release_all_locked();
}

counters injector::counts() const {
  std::lock_guard lock(state_->mutex);
  return state_->counts;
}

} // namespace faults
