// SPDX-License-Identifier: BSL-1.0
#include "device/objects.hpp"

#include "device/limits.hpp"
#include "engine/engine.hpp"

#include "asio_rdma_soft.h"
#include "engine/of_process.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <mutex>
#include <net/if.h>
#include <netinet/in.h>

namespace soft {

ibv_device& device() noexcept {
  // Libraries of adapters (mlx5dv_is_supported(3)) read behind a device whether it is theirs.
  struct with_nothing_behind {
    ibv_device d{};
    const void* behind[32]{};
  };
  static with_nothing_behind all = [] {
    with_nothing_behind made;
    made.d.node_type = IBV_NODE_CA;
    made.d.transport_type = IBV_TRANSPORT_IB;
    std::strcpy(made.d.name, "soft0");
    std::strcpy(made.d.dev_name, "soft0");
    return made;
  }();
  return all.d;
}

namespace {

struct all_counts {
  resource_counts made, lost;
};

} // namespace

resource_counts& resources() noexcept { return of_process<all_counts>().made; }
resource_counts& lost_resources() noexcept { return of_process<all_counts>().lost; }

namespace {

struct open_contexts {
  std::mutex mutex;
  std::vector<device_context*> all;
};

} // namespace

device_context::device_context() : verbs_context{} {
  auto& open = of_process<open_contexts>();
  const std::lock_guard lock(open.mutex);
  open.all.push_back(this);
}

device_context::~device_context() {
  auto& open = of_process<open_contexts>();
  const std::lock_guard lock(open.mutex);
  std::erase(open.all, this);
}

void device_context::for_all(const std::function<void(device_context&)>& f) {
  auto& open = of_process<open_contexts>();
  const std::lock_guard lock(open.mutex);
  for (device_context* const c : open.all)
    f(*c);
}

ibv_gid gid_of(const sockaddr& address) noexcept {
  ibv_gid g{};
  if (address.sa_family == AF_INET6) {
    std::memcpy(g.raw, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  } else {
    g.raw[10] = g.raw[11] = 0xff;
    std::memcpy(g.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return g;
}

namespace {

struct gid_table {
  std::mutex mutex;
  std::vector<gid_entry> all;
};
// For `is_here`, which is called often.
struct gid_copy {
  std::mutex mutex;
  std::vector<gid_entry> all;
  clock::time_point until{};
};

} // namespace

// A GID keeps its index, because queue pairs name the index. If an address is removed, its GID
// becomes zero. If the table is full, other addresses take the places of such GIDs; without one,
// an address has no GID.
std::vector<gid_entry> gids() {
  auto& [mutex, table] = of_process<gid_table>();
  std::lock_guard lock(mutex);
  std::vector<bool> present(table.size());
  std::vector<gid_entry> others;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0)
    return table;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> freed(all, freeifaddrs);
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0 ||
        (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
      continue;
    const gid_entry e{gid_of(*i->ifa_addr), if_nametoindex(i->ifa_name)};
    const auto same = std::find_if(table.begin(), table.end(), [&](const gid_entry& t) {
      return is_same(t.gid, e.gid) && t.interface == e.interface;
    });
    if (same != table.end())
      present[static_cast<std::size_t>(same - table.begin())] = true;
    else if (table.size() == limits::addresses)
      others.push_back(e);
    else {
      table.push_back(e);
      present.push_back(true);
    }
  }
  for (const gid_entry& e : others)
    if (const auto free = std::find(present.begin(), present.end(), false); free != present.end()) {
      table[static_cast<std::size_t>(free - present.begin())] = e;
      *free = true;
    }
  std::vector<gid_entry> result = table;
  for (std::size_t i = 0; i != result.size(); ++i)
    if (!present[i])
      result[i] = {};
  return result;
}

int index_in(const std::vector<gid_entry>& all, const ibv_gid& gid) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const gid_entry& e) { return is_same(e.gid, gid); });
  if (found != all.end())
    return static_cast<int>(found - all.begin());
  // 127.0.0.2 is an address of this machine, too.
  static constexpr std::uint8_t loopback[13] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127};
  if (std::memcmp(gid.raw, loopback, 13) != 0)
    return -1;
  const auto local = std::find_if(all.begin(), all.end(), [&](const gid_entry& e) {
    return std::memcmp(e.gid.raw, loopback, 13) == 0;
  });
  return local == all.end() ? -1 : static_cast<int>(local - all.begin());
}

int index_of(const ibv_gid& gid) { return index_in(gids(), gid); }

bool is_here(const ibv_gid& gid) {
  auto& [mutex, known, until] = of_process<gid_copy>();
  std::lock_guard lock(mutex);
  const auto now = clock::now();
  if (now >= until) {
    known = gids();
    until = now + std::chrono::milliseconds(100);
  }
  return index_in(known, gid) >= 0;
}

} // namespace soft

namespace {

soft_resources counts_of(const soft::resource_counts& c) noexcept {
  return {c.domains,     c.regions, c.windows, c.completion_queues, c.shared_receive_queues,
          c.queue_pairs, c.ids};
}

} // namespace

extern "C" __attribute__((visibility("default"))) void soft_get_resources(soft_resources* to) {
  *to = counts_of(soft::resources());
}

extern "C" __attribute__((visibility("default"))) void soft_get_lost_resources(soft_resources* to) {
  *to = counts_of(soft::lost_resources());
}
