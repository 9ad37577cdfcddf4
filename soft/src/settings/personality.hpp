// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_SETTINGS_PERSONALITY_HPP
#define SOFT_SETTINGS_PERSONALITY_HPP

#include <chrono>
#include <cstdint>
#include <infiniband/verbs.h>
#include <string_view>

namespace soft {

/// A kind of adapter: its limits, its capabilities and its habits.
struct personality {
  std::string_view name;
  std::uint32_t vendor, part; ///< `vendor_id` and `vendor_part_id`, by which programs know adapters

  // ---- limits
  unsigned send_elements;       ///< scatter/gather elements of a request
  unsigned receive_elements;    ///< and of a receive
  unsigned read_elements;       ///< and of a READ
  std::uint32_t inline_bytes;   ///< of a request
  std::uint32_t message_bytes;  ///< of a message of a connection
  std::uint32_t datagram_bytes; ///< of a datagram
  unsigned vectors = 2;         ///< completion vectors; of no personality its own
  unsigned reads;               ///< READs and atomics that a queue pair has outstanding

  // ---- capabilities
  bool reliable;        ///< queue pairs of type RC
  bool unreliable;      ///< and UC
  bool datagrams;       ///< and UD
  bool shared_receives; ///< shared receive queues
  bool window_flags;    ///< the device reports memory windows, of type 2B
  int windows;          ///< `max_mw`
  /// The error of ibv_alloc_mw(3), or 0. With EOPNOTSUPP a post of IBV_WR_LOCAL_INV fails, too: the
  /// provider knows neither.
  int no_windows;
  ibv_atomic_cap atomics;
  std::uint64_t built_requests; ///< IBV_QP_EX_WITH_* of ibv_wr_post(3); 0: it is not there
  bool on_demand;               ///< registration with IBV_ACCESS_ON_DEMAND
  bool dma_bufs;                ///< ibv_reg_dmabuf_mr(3)
  /// Enhanced connection establishment: ibv_query_ece(3) of a new queue pair. Vendor 0: none.
  std::uint32_t ece_vendor, ece_options;

  // ---- habits
  /// ibv_destroy_qp removes the completions of the queue pair, unpolled. The receives that a shared
  /// receive queue gave for them are never reported.
  bool drops_completions;
  /// The time from the last flushed request to IBV_EVENT_QP_LAST_WQE_REACHED.
  std::chrono::nanoseconds late_last_wqe;
  /// IBV_EVENT_QP_LAST_WQE_REACHED is never raised.
  bool no_last_wqe = false;
  /// The receives that a queue pair has taken from its shared receive queue, and not filled, when
  /// it reaches the error state. They are flushed immediately before IBV_EVENT_QP_LAST_WQE_REACHED.
  /// If the queue pair is destroyed before, they are never reported, with `drops_completions`. 0
  /// for all adapters: no figure found.
  unsigned taken_receives = 0;
  /// The time from the completion of a WRITE until its bytes are in the peer's memory, of queue
  /// pairs of type RC within a process. A request behind the WRITEs, other than a WRITE, takes
  /// effect after their placement (RFC 5040, section 5.5). The peer's memory is checked at both
  /// times. 0 for all adapters: no figure found.
  std::chrono::nanoseconds late_placement{0};
  /// A receive or the answer to a READ of at most so many bytes lies in the completion until the
  /// program polls it, and its processor copies it then. A READ's: if all requests are signaled
  /// (sq_sig_all). `MLX5_SCATTER_TO_CQE=0` switches it off for queue pairs that are made
  /// afterwards.
  std::uint32_t copied_at_poll;
  /// IBV_EVENT_DEVICE_FATAL removes the device: requests never complete, and functions that make,
  /// change or destroy an object fail with EIO.
  bool eio_after_removal;
  /// The time from the first failure to the event. So long the device may still use the memory.
  std::chrono::nanoseconds removal;
  /// The time from RDMA_CM_EVENT_DEVICE_REMOVAL of the ids to the first failure. 0 for all
  /// adapters: no figure found.
  std::chrono::nanoseconds removal_notice{0};
  /// The ids get their event after that of the device: ib_uverbs was loaded after rdma_cm. Not so
  /// with mlx5, whose driver needs ib_uverbs.
  bool ids_last = false;
  /// Registered memory is limited by RLIMIT_MEMLOCK.
  bool locks_memory;
  /// The completion of a received datagram names the kind of network header in `sl`: 9 for IPv6, 10
  /// for IPv4 (bit 3: UDP; bits 0 to 2: the header). Otherwise `sl` is 0, and UCX 1.13 takes every
  /// header for IPv6.
  bool header_in_sl;
  /// The port reports IBV_QPF_GRH_REQUIRED.
  bool grh_required;
  /// ibv_query_qp(3) reports neither the address vector nor the timeout: both are 0.
  bool untold_route = false;
  /// The port's link layer is InfiniBand: it has a LID, and paths within its subnet need no global
  /// route. Its GIDs are those of RoCE nevertheless.
  bool infiniband = false;
  /// The first requests of rdma_connect that are rejected with reason 10, *stale connection*.
  unsigned stale_rejects;
  /// The time that creating or destroying a queue, a queue pair, or a domain takes.
  std::chrono::nanoseconds create, destroy;
  /// The time that registering memory takes, and its part for each byte.
  std::chrono::nanoseconds register_memory;
  double register_byte_ns;
  /// The time from a post to its effect; the setting of this name replaces it.
  std::chrono::nanoseconds latency;
  /// IBV_EVENT_QP_LAST_WQE_REACHED is not raised about a queue pair that has failed because of a
  /// request in error, its own or the peer's.
  bool last_wqe_only_without_error = false;
  /// The event that the device raises about a queue pair whose request has failed with this status;
  /// nullptr: it raises none. With one, it also reports each error in a request of the peer's.
  ibv_event_type (*event_of_failure)(ibv_wc_status) = nullptr;
  /// The time from that event to the completion of the request. 0 for all adapters: no figure
  /// found.
  std::chrono::nanoseconds late_failure{0};
};

/// The personality of a program that sets none.
extern const personality plain;
/// The personality of this name, or nullptr.
const personality* find_personality(std::string_view name) noexcept;

} // namespace soft

#endif
