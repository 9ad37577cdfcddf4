// SPDX-License-Identifier: BSL-1.0
// The context and the domain that the ids of a process have in common, and the device's addresses
// in an id.
#include "cm/addresses.hpp"
#include "cm/cm_id.hpp"

#include "engine/of_process.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace soft {
namespace {

struct context_of_ids {
  std::mutex mutex;
  std::atomic<ibv_context*> opened{nullptr};
};

} // namespace

ibv_context* cm_id::shared_context() noexcept { return of_process<context_of_ids>().opened; }

ibv_context* cm_id::open_context() {
  auto& [mutex, opened] = of_process<context_of_ids>();
  const std::lock_guard lock(mutex);
  if (opened != nullptr && !device_context::of(opened).removed)
    return opened;
  ibv_context* const made = ibv_open_device(&soft::device());
  if (made == nullptr)
    return nullptr;
  ibv_context* unused = nullptr;
  {
    const engine::lock_guard locked(engine::get());
    unused = opened.exchange(made);
    if (unused != nullptr && device_context::of(unused).is_in_use())
      unused = nullptr;
  }
  if (unused != nullptr)
    ibv_close_device(unused);
  return made;
}

namespace {

// The engine must be locked.
device_context& count_in(cm_id& id) noexcept {
  if (id.context_of_device == nullptr) {
    id.context_of_device = cm_id::shared_context();
    auto& ids = device_context::of(id.context_of_device).ids;
    id.place = ids.insert(ids.end(), &id);
  }
  return device_context::of(id.context_of_device);
}

} // namespace

int cm_id::share_domain() {
  const std::lock_guard lock(of_process<context_of_ids>().mutex);
  device_context* c = nullptr;
  {
    const engine::lock_guard locked(engine::get());
    c = &count_in(*this);
    if (c->is_leaving)
      return ENODEV;
  }
  if (c->domain_of_ids == nullptr)
    c->domain_of_ids = ibv_alloc_pd(c->base());
  if (c->domain_of_ids == nullptr)
    return errno;
  if (!std::exchange(shares_domain, true))
    ++c->parts_in_domain;
  const engine::lock_guard locked(engine::get());
  if (verbs != nullptr && pd == nullptr)
    pd = c->domain_of_ids;
  return 0;
}

bool cm_id::has_lost_device() const noexcept {
  return device_context::of(context_of_device != nullptr ? context_of_device : shared_context())
      .is_leaving;
}

void cm_id::leave_domain() {
  if (!std::exchange(shares_domain, false))
    return;
  const std::lock_guard lock(of_process<context_of_ids>().mutex);
  device_context& c = device_context::of(context_of_device);
  if (--c.parts_in_domain == 0 && ibv_dealloc_pd(c.domain_of_ids) == 0)
    c.domain_of_ids = nullptr;
}

void cm_id::use_device() noexcept {
  rdma_ib_addr& gids = route.addr.addr.ibaddr;
  gids.sgid = gid_of(route.addr.src_addr);
  gids.pkey = default_partition;
  if (route.addr.dst_addr.sa_family != 0)
    gids.dgid = gid_of(route.addr.dst_addr);
  if (verbs != nullptr)
    return;
  device_context& c = count_in(*this);
  verbs = c.base();
  port_num = 1;
  if (shares_domain)
    pd = c.domain_of_ids;
}

ibv_context* cm_id::leave_device() noexcept {
  std::free(std::exchange(route.path_rec, nullptr));
  verbs = nullptr;
  ibv_context* const left = std::exchange(context_of_device, nullptr);
  if (left == nullptr)
    return nullptr;
  device_context& c = device_context::of(left);
  c.ids.erase(place);
  return left != shared_context() && !c.is_in_use() ? left : nullptr;
}

// As the kernel makes it for RoCE (cma_resolve_iboe_route).
int cm_id::fill_path() noexcept {
  constexpr std::uint8_t equal_to = 2, lifetime = 16; // 4.096 us * 2^16
  auto* const path = static_cast<ibv_sa_path_rec*>(std::calloc(1, sizeof(ibv_sa_path_rec)));
  if (path == nullptr)
    return ENOMEM;
  path->sgid = route.addr.addr.ibaddr.sgid;
  path->dgid = route.addr.addr.ibaddr.dgid;
  path->hop_limit = hop_limit;
  path->traffic_class = traffic_class;
  path->reversible = 1;
  path->numb_path = 1;
  path->pkey = default_partition;
  path->mtu_selector = path->rate_selector = path->packet_life_time_selector = equal_to;
  path->mtu = path_mtu;
  path->rate = IBV_RATE_100_GBPS;
  path->packet_life_time = lifetime;
  std::free(std::exchange(route.path_rec, path));
  route.num_paths = 1;
  return 0;
}

} // namespace soft
