// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/device.hpp>

#include "verbs/device_listeners.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <sched.h>

namespace asio_rdma {
namespace detail {

/// No other driver has these vendor ids.
inline constexpr std::uint32_t rxe_vendor = 0xffffff, siw_vendor = 0x626d74;
/// rxe takes 7, the most that the field holds, as for ever (drivers/infiniband/sw/rxe/rxe_comp.c).
inline constexpr std::uint8_t most_rxe_retries = 6;
/// Of mlx5 and of mlx4.
inline constexpr std::uint32_t mellanox_vendor = 0x02c9;

/// Limits of queue pairs that no attribute reports. Creating queue pairs finds them, and lowers
/// these values, so that it need not look for them again.
struct queue_pair_limits {
  std::atomic<std::uint32_t> inline_bytes{std::numeric_limits<std::uint32_t>::max()};
  std::atomic<std::uint32_t> send_elements{std::numeric_limits<std::uint32_t>::max()};
};

/// The error of operations after IBV_EVENT_DEVICE_FATAL. The kernel reports a removal by this event
/// when it has destroyed the objects of the context (drivers/infiniband/core,
/// uverbs_async_event_destroy_uobj); a driver reports a fatal error by it. `otherwise`: the error
/// if the device was not removed, after an event of another kind.
inline error fatal_error(const device& d, error otherwise = error::device_fatal) noexcept {
  return d.is_removed() ? error::device_removed : otherwise;
}

/// The first entry with this GID, in the port's table as it is now, for which `fits` is true. A GID
/// may have several entries, and entries change with the addresses. Allocates nothing.
template <class Fits>
std::optional<ibv_gid_entry> find_gid(ibv_context* verbs, std::uint8_t number,
                                      const ibv_port_attr& port, const ibv_gid& gid,
                                      Fits fits) noexcept {
  const auto length = static_cast<std::uint32_t>(std::max(port.gid_tbl_len, 0));
  for (std::uint32_t i = 0; i < length; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(verbs, number, i, &entry, 0) == 0 &&
        std::memcmp(&entry.gid, &gid, sizeof gid) == 0 && fits(entry))
      return entry;
  }
  return {};
}

} // namespace detail

/// An opened device, for all its handles.
struct device::impl {
  impl(ibv_context* c, ownership o) : context(c), owns(o) {}
  impl(const impl&) = delete;
  ~impl() {
    listeners->close();
    if (occupied != nullptr)
      ibv_destroy_cq(occupied);
    if (first_made != nullptr)
      ibv_destroy_comp_channel(first_made);
    if (owns == ownership::take)
      ibv_close_device(context);
  }

  ibv_context* context;
  ownership owns;
  ibv_comp_channel* first_made = nullptr;  ///< See `device::is_removed`.
  std::atomic<bool> removal_missed{false}; ///< It was waited for in vain.
  ibv_cq* occupied = nullptr;              ///< See `detail::occupy_invalid_offset`.
  ibv_device_attr attributes{};
  std::uint32_t max_message_bytes = 0;
  placement flush{};
  bool memory_windows = false;
  bool on_demand_paging = false;
  bool device_only_receives = true;
  detail::queue_pair_limits queue_pair_limits;
  /// The completion vector of the next completion queue, before the division by their number. It
  /// begins with the CPU's number, so that processes on different CPUs begin with different
  /// vectors.
  std::atomic<unsigned> next_vector{static_cast<unsigned>(sched_getcpu())};
  const std::shared_ptr<detail::device_listeners> listeners =
      std::make_shared<detail::device_listeners>();
};

namespace detail {

/// As `device::is_removed`.
bool is_removed(const device::impl& d) noexcept;

} // namespace detail

} // namespace asio_rdma
