// SPDX-License-Identifier: BSL-1.0
#include "device/objects.hpp"

#include "engine/engine.hpp"

#include "asio_rdma_soft.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <ifaddrs.h>
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

resource_counts& resources() noexcept {
  static auto* const counts = new resource_counts;
  return *counts;
}

namespace {

std::mutex contexts_mutex;
std::vector<device_context*>& contexts() {
  static auto* const all = new std::vector<device_context*>;
  return *all;
}

} // namespace

device_context::device_context() : verbs_context{} {
  const std::lock_guard lock(contexts_mutex);
  contexts().push_back(this);
}

device_context::~device_context() {
  const std::lock_guard lock(contexts_mutex);
  std::erase(contexts(), this);
}

void device_context::for_all(const std::function<void(device_context&)>& f) {
  const std::lock_guard lock(contexts_mutex);
  for (device_context* const c : contexts())
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

// A GID keeps its index, because queue pairs name the index. If an address is removed, its GID
// becomes zero.
std::vector<gid_entry> gids() {
  static std::mutex mutex;
  static auto& table = *new std::vector<gid_entry>;
  std::lock_guard lock(mutex);
  std::vector<bool> present(table.size());
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0)
    return table;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0 ||
        (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
      continue;
    const gid_entry e{gid_of(*i->ifa_addr), if_nametoindex(i->ifa_name)};
    const auto same = std::find_if(table.begin(), table.end(), [&](const gid_entry& t) {
      return is_same(t.gid, e.gid) && t.interface == e.interface;
    });
    if (same != table.end()) {
      present[static_cast<std::size_t>(same - table.begin())] = true;
    } else {
      table.push_back(e);
      present.push_back(true);
    }
  }
  freeifaddrs(all);
  std::vector<gid_entry> result = table;
  for (std::size_t i = 0; i != result.size(); ++i)
    if (!present[i])
      result[i] = {};
  return result;
}

namespace {

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

} // namespace

int index_of(const ibv_gid& gid) { return index_in(gids(), gid); }

bool is_here(const ibv_gid& gid) {
  static std::mutex mutex;
  static auto& known = *new std::vector<gid_entry>;
  static clock::time_point until{};
  std::lock_guard lock(mutex);
  const auto now = clock::now();
  if (now >= until) {
    known = gids();
    until = now + std::chrono::milliseconds(100);
  }
  return index_in(known, gid) >= 0;
}

} // namespace soft

extern "C" __attribute__((visibility("default"))) void soft_get_resources(soft_resources* to) {
  const soft::resource_counts& c = soft::resources();
  *to = {c.domains,     c.regions, c.windows, c.completion_queues, c.shared_receive_queues,
         c.queue_pairs, c.ids};
}
