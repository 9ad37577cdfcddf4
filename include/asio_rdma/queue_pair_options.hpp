// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/device.hpp>
#include <boost/asio/ip/address.hpp>
#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

namespace asio_rdma {

/// Options of a queue pair. A lower limit of the device takes precedence;
/// `basic_queue_pair::options` has the values in force. The device reports one limit for the
/// buffers of a send and of a receive, the smaller one, and none for inline data. If `max_send_sge`
/// exceeds the reported limit, or `max_inline` is refused, opening the queue pair tries smaller
/// values. The device's handle keeps those that were accepted.
struct queue_pair_options {
  ibv_qp_type type = IBV_QPT_RC; ///< IBV_QPT_RC or IBV_QPT_UC

  std::uint32_t send_depth = 128;    ///< Work requests posted at a time; more wait their turn.
  std::uint32_t receive_depth = 128; ///< Likewise for receives.
  // A buffer sequence of run-time length may have at most 16.
  std::uint32_t max_send_sge = 4;    ///< Buffers in one send, read or write.
  std::uint32_t max_receive_sge = 4; ///< Buffers in one receive.
  std::uint32_t max_inline = 64;     ///< Bytes; payloads up to this are copied into the request.

  std::uint8_t port = 0; ///< 0: the first active port, or the port of `local`.
  /// Index of the partition key in the port's table, for a queue pair that is connected without the
  /// connection manager. The connection manager uses the key of the address's network interface.
  std::uint16_t pkey_index = 0;
  /// The address of this side, for a queue pair that is connected without the connection manager:
  /// selects the GID of that address. Empty: `device::best_gid` of the port. The connection manager
  /// chooses the address itself.
  std::optional<asio::ip::address> local = std::nullopt;
  ibv_mtu path_mtu = ibv_mtu(0); ///< 0: the port's active MTU, or the smaller of both sides.
  std::uint8_t max_reads = 16; ///< RDMA READs and atomics in flight, each way, up to the device's;
                               ///< at least 1.
  // If no acknowledgement arrives within the timeout, the device transmits again. After the last
  // retry the queue pair ends, and the operation that was retried fails with `errc::timed_out`. So
  // an interruption of the network has no effect if it ends within:
  //
  //   (retry_count + 1) * timeout, 8.6 s by default, and 7.5 s on rxe: at least that by the
  //     specification, which lets a device wait up to four times the timeout (34 s by default)
  //   retry_count * timeout, 7.5 s by default: mlx5 with adaptive retransmission
  //
  // A packet that the peer reports as missing takes a retry, too. So an interruption that begins or
  // ends with the loss of some packets only may end the queue pair earlier.
  //
  // A side without outstanding operations does not notice a silent peer: see
  // `connection_options::keep_alive`. If the last packet before a pause is lost, rxe also waits for
  // the timeout, so on a network that loses packets a shorter one is faster. On iWARP TCP
  // retransmits (tcp(7), tcp_retries2). rxe and the siw of Linux 6.1 end a queue pair at once if
  // the link of their own port goes down.
  // Source: InfiniBand specification, 9.7.6.1.3
  std::uint8_t timeout = 18;       ///< 4.096 µs * 2^timeout to each retry (1.07 s); 0: for ever.
  std::uint8_t retry_count = 7;    ///< At most 7. rxe is given at most 6: it takes 7 as for ever.
  std::uint8_t rnr_retry = 6;      ///< Retries when the peer has no receive posted; 7: for ever.
  std::uint8_t min_rnr_timer = 12; ///< The peer's pause before a retry (ibv_modify_qp(3)): 0.64 ms.
  std::uint8_t hop_limit = 64;
  // Quality of service, by which switches select a priority. Without the connection manager the
  // default is 0. The connection manager knows both from the route, and the accepting side from the
  // request: see `connect_options::type_of_service`. A value here replaces that of the connection
  // manager, for the packets of this side alone.
  std::optional<std::uint8_t> traffic_class =
      std::nullopt; ///< RoCE: the type of service of the IP header.
  std::optional<std::uint8_t> service_level =
      std::nullopt; ///< 0 to 15. RoCE: the priority in a VLAN, 0 to 7.

  /// Each sets the member of its name and returns the options:
  /// `queue_pair_options().set_type(…)`. Calls can be chained.
  ///@{
  queue_pair_options& set_type(ibv_qp_type value) { return detail::set(*this, type, value); }
  queue_pair_options& set_send_depth(std::uint32_t value) {
    return detail::set(*this, send_depth, value);
  }
  queue_pair_options& set_receive_depth(std::uint32_t value) {
    return detail::set(*this, receive_depth, value);
  }
  queue_pair_options& set_max_send_sge(std::uint32_t value) {
    return detail::set(*this, max_send_sge, value);
  }
  queue_pair_options& set_max_receive_sge(std::uint32_t value) {
    return detail::set(*this, max_receive_sge, value);
  }
  queue_pair_options& set_max_inline(std::uint32_t value) {
    return detail::set(*this, max_inline, value);
  }
  queue_pair_options& set_port(std::uint8_t value) { return detail::set(*this, port, value); }
  queue_pair_options& set_pkey_index(std::uint16_t value) {
    return detail::set(*this, pkey_index, value);
  }
  queue_pair_options& set_local(const std::optional<asio::ip::address>& value) {
    return detail::set(*this, local, value);
  }
  queue_pair_options& set_path_mtu(ibv_mtu value) { return detail::set(*this, path_mtu, value); }
  queue_pair_options& set_max_reads(std::uint8_t value) {
    return detail::set(*this, max_reads, value);
  }
  queue_pair_options& set_timeout(std::uint8_t value) { return detail::set(*this, timeout, value); }
  queue_pair_options& set_retry_count(std::uint8_t value) {
    return detail::set(*this, retry_count, value);
  }
  queue_pair_options& set_rnr_retry(std::uint8_t value) {
    return detail::set(*this, rnr_retry, value);
  }
  queue_pair_options& set_min_rnr_timer(std::uint8_t value) {
    return detail::set(*this, min_rnr_timer, value);
  }
  queue_pair_options& set_hop_limit(std::uint8_t value) {
    return detail::set(*this, hop_limit, value);
  }
  queue_pair_options& set_traffic_class(std::optional<std::uint8_t> value) {
    return detail::set(*this, traffic_class, value);
  }
  queue_pair_options& set_service_level(std::optional<std::uint8_t> value) {
    return detail::set(*this, service_level, value);
  }
  ///@}
};

/// The address of a queue pair, which two sides exchange to connect without the connection manager.
struct queue_pair_address {
  std::uint32_t number = 0;        ///< Queue pair number, 24 bits.
  std::uint32_t packet_number = 0; ///< First packet sequence number, 24 bits.
  ibv_gid gid{};
  std::uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint8_t max_reads = 1; ///< RDMA READs and atomics that this side answers at a time; if
                              ///< it is 0, the peer's fail with `operation_not_supported`.
};

/// The states of a queue pair in this library.
enum class queue_pair_state {
  closed,
  open,      ///< Receives may be started.
  connected, ///< All operations may be started.
  failed     ///< All operations end with an error.
};

} // namespace asio_rdma
