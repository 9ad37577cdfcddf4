// SPDX-License-Identifier: BSL-1.0
#include "state.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <shared_mutex>
#include <system_error>

namespace faults {
namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct registry {
  std::shared_mutex mutex;
  std::unordered_map<ibv_context*, std::shared_ptr<context_state>> states;
};
registry& contexts() {
  static registry r;
  return r;
}

} // namespace

merged_descriptor::merged_descriptor(int real) : real_(real) {
  const int flags = ::fcntl(real_, F_GETFL);
  if (flags < 0 || ::fcntl(real_, F_SETFL, flags | O_NONBLOCK) < 0)
    throw_errno("fcntl");
  event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (event_ < 0 || epoll_ < 0)
    throw_errno("eventfd, epoll_create1");
  for (const int fd : {real_, event_}) {
    epoll_event e{};
    e.events = EPOLLIN;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) < 0)
      throw_errno("epoll_ctl");
  }
}

merged_descriptor::~merged_descriptor() {
  ::close(epoll_);
  ::close(event_);
}

void merged_descriptor::signal() {
  const std::uint64_t one = 1;
  if (::write(event_, &one, sizeof one) != sizeof one)
    throw_errno("eventfd");
}

void merged_descriptor::clear() {
  const int saved = errno; // an empty read is no error
  std::uint64_t value;
  [[maybe_unused]] const auto r = ::read(event_, &value, sizeof value);
  errno = saved;
}

bool merged_descriptor::wait() const {
  if (::fcntl(epoll_, F_GETFL) & O_NONBLOCK) {
    errno = EAGAIN;
    return false;
  }
  pollfd p{epoll_, POLLIN, 0};
  return ::poll(&p, 1, -1) > 0; // interrupted: errno is EINTR
}

std::shared_ptr<context_state> state_of(ibv_context* context) {
  auto& r = contexts();
  {
    std::shared_lock lock(r.mutex);
    if (const auto i = r.states.find(context); i != r.states.end())
      return i->second;
  }
  std::unique_lock lock(r.mutex);
  auto& slot = r.states[context];
  if (!slot)
    slot = std::make_shared<context_state>(context);
  return slot;
}

void forget(ibv_context* context) {
  auto& r = contexts();
  std::unique_lock lock(r.mutex);
  r.states.erase(context);
}

std::shared_ptr<context_state> find_state(const std::function<bool(context_state&)>& is_it) {
  auto& r = contexts();
  std::shared_lock lock(r.mutex);
  for (const auto& [context, state] : r.states)
    if (is_it(*state))
      return state;
  return nullptr;
}

void* next_symbol(const char* symbol) {
  // dlsym with RTLD_NEXT returns the base version, which for many functions is the incompatible one
  // of libibverbs 1.0. The newest version is the default one.
  static constexpr int newest_version = 31;
  for (int minor = newest_version; minor >= 0; --minor) {
    const auto version = "IBVERBS_1." + std::to_string(minor);
    if (void* found = ::dlvsym(RTLD_NEXT, symbol, version.c_str()))
      return found;
  }
  std::fprintf(stderr, "faults: %s is not in a shared libibverbs\n", symbol);
  std::abort();
}

bool same_element(const ibv_async_event& a, const ibv_async_event& b) {
  if (a.event_type != b.event_type)
    return false;
  switch (a.event_type) {
  case IBV_EVENT_CQ_ERR:
    return a.element.cq == b.element.cq;
  case IBV_EVENT_SRQ_ERR:
  case IBV_EVENT_SRQ_LIMIT_REACHED:
    return a.element.srq == b.element.srq;
  case IBV_EVENT_WQ_FATAL:
    return a.element.wq == b.element.wq;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_PATH_MIG:
  case IBV_EVENT_PATH_MIG_ERR:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    return a.element.qp == b.element.qp;
  default:
    return a.element.port_num == b.element.port_num;
  }
}

context_state::context_state(ibv_context* c) : context(c) {}

context_state::~context_state() = default;

std::uint64_t context_state::draw_locked(chance kind) {
  const auto k = static_cast<std::size_t>(kind);
  // splitmix64 of the seed, the kind and the index
  std::uint64_t x = random->seed * 0x9e3779b97f4a7c15u + (k << 56) + drawn[k]++;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

bool context_state::happens_locked(chance kind, double probability) {
  if (!random || probability <= 0)
    return false;
  return static_cast<double>(draw_locked(kind) >> 11) * 0x1p-53 < probability;
}

refusal context_state::check(call which, std::uint32_t qp_num, int qp_state, unsigned chain) {
  std::lock_guard lock(mutex);
  return check_locked(which, qp_num, qp_state, chain);
}

refusal context_state::check_locked(call which, std::uint32_t qp_num, int qp_state,
                                    unsigned chain) {
  const auto c = static_cast<std::size_t>(which);
  ++counts.calls[c];
  if (which == call::post_send)
    counts.send_requests += chain;
  else if (which == call::post_recv || which == call::post_srq_recv)
    counts.receive_requests += chain;
  if (!attached)
    return {};

  refusal result;
  for (auto& r : rules) {
    if (r.which != which || r.times == 0 || (r.qp_num && r.qp_num != qp_num) ||
        (r.qp_state >= 0 && r.qp_state != qp_state) || (r.at_index && r.index >= chain))
      continue;
    if (r.skip) {
      --r.skip;
      continue;
    }
    if (r.times != forever)
      --r.times;
    if (!result.error)
      result = {r.error, r.index};
  }

  const auto destroys = which == call::dealloc_pd || which == call::dereg_mr ||
                        which == call::dealloc_mw || which == call::destroy_comp_channel ||
                        which == call::destroy_cq || which == call::destroy_srq ||
                        which == call::destroy_qp || which == call::poll_cq;
  if (!result.error && dead && !destroys)
    result.error = EIO;

  if (!result.error && random) {
    switch (which) {
    case call::post_send:
      if (happens_locked(chance::send, random->refuse_send))
        result = {ENOMEM, static_cast<unsigned>(draw_locked(chance::index) % chain)};
      break;
    case call::post_recv:
    case call::post_srq_recv:
      if (happens_locked(chance::receive, random->refuse_receive))
        result = {ENOMEM, static_cast<unsigned>(draw_locked(chance::index) % chain)};
      break;
    case call::reg_mr:
      if (happens_locked(chance::registration, random->fail_registration))
        result.error = ENOMEM;
      break;
    case call::alloc_pd:
    case call::create_comp_channel:
    case call::create_cq:
    case call::create_srq:
    case call::create_qp:
    case call::alloc_mw:
      if (happens_locked(chance::creation, random->fail_creation))
        result.error = ENOMEM;
      break;
    case call::modify_qp:
      if (happens_locked(chance::modify, random->fail_modify_qp))
        result.error = EINVAL;
      break;
    default:
      break;
    }
  }
  if (result.error)
    ++counts.refused[c];
  return result;
}

} // namespace faults
