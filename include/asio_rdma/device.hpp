// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace asio_rdma::detail {
class device_listeners;
struct queue_pair_limits;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

/// The ownership of an adopted handle. `take`: the adopting object destroys the handle like one
/// that it made itself. `borrow`: the caller destroys the handle, after the adopting object and
/// everything made on it have been released. If adopting fails, the caller keeps the handle in
/// either case.
enum class ownership { take, borrow };

/// The transport of a device (ibv_get_device_list(3), `transport_type`).
enum class transport { infiniband, iwarp, other };

/// A placement of written bytes, which a FLUSH ensures (InfiniBand specification, annex A19);
/// combined by `|`.
enum class placement : unsigned {
  visible = 1,   ///< The peer's CPU, and other devices there, see the bytes.
  persistent = 2 ///< The bytes outlast a loss of power.
};

constexpr placement operator|(placement a, placement b) noexcept {
  return static_cast<placement>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool has(placement set, placement one) noexcept {
  return (static_cast<unsigned>(set) & static_cast<unsigned>(one)) != 0;
}

/// An entry of a port's GID table (ibv_query_gid_ex(3)).
struct gid_entry {
  enum class kind { infiniband, roce_v1, roce_v2 };

  ibv_gid gid{};
  std::uint8_t port = 1;
  std::uint32_t index = 0;
  kind type = kind::infiniband;
  std::uint32_t interface_index = 0; ///< Of the port's network interface; 0 where it has none.

  /// The GID as an IP address. An IPv4-mapped GID gives the IPv4 address, and a link-local address
  /// has the interface as its scope id. Only a GID of RoCE is an address of a network interface:
  /// see `device::addresses`.
  asio::ip::address address() const;
};

/// Counters of a port, over all its queue pairs and all programs, since its driver was loaded.
struct port_counters {
  /// Requests that were retransmitted because the peer had no posted receive (RNR).
  std::optional<std::uint64_t> rnr;
  /// Requests that were retransmitted because no answer arrived, or the answer reported a gap.
  std::optional<std::uint64_t> retries;
};

namespace detail {

/// Whether `a` precedes `b` in `device::gids`.
bool better_gid(const gid_entry& a, const gid_entry& b);
} // namespace detail

/// An opened RDMA device. A cheap, shared handle: copies refer to the same device, which is closed
/// with the last copy and the last object made on it. Safe from any thread.
class device {
public:
  using native_handle_type = ibv_context*;

  struct description {
    std::string name;
    transport type = transport::other;
    std::uint64_t guid = 0;   ///< In host byte order.
    bool port_active = false; ///< Could be opened and has an active port.
    error_code open_error;    ///< Why it could not be opened.
  };

  /// A device that is not open: objects cannot be made on it (`bad_descriptor`). Every other member
  /// but `is_open` and assignment needs an opened device.
  device() noexcept = default;

  /// The devices of this machine (ibv_get_device_list(3)); empty on failure.
  static std::vector<description> list();

  /// Opens a device by its name, such as "rxe0". Errors: `error::device_not_found`;
  /// `error::device_permission` if the process may not open the device's file; of a device that the
  /// kernel has and libibverbs does not list, `error::device_file_missing`,
  /// `error::provider_missing` or `error::module_missing`; or the system's. The messages name the
  /// file or the module, and the devices that exist.
  static device open(std::string_view name);
  static device open(std::string_view name, error_code& ec);

  /// Opens the device of the best active port. Ports are ranked by: reliable connections; an
  /// address in this network namespace, or InfiniBand; an adapter before rxe and siw; the rate; the
  /// NUMA node of the calling thread; InfiniBand before Ethernet; of InfiniBand, an address before
  /// none; the order of ibv_get_device_list(3). Each decides only if those before it do not. A port
  /// of InfiniBand without an address connects only by an exchange. Errors: `error::no_device` if
  /// no device has an active port. If, besides, the process cannot use one: the errors of `open`.
  static device open_first();
  static device open_first(error_code& ec);

  /// Opens the device for connections from and to an IP address: the one that has it in this
  /// network namespace; for the address of a peer, the one that has the local address of the route
  /// to it (ip-route(8)). The ranking of `open_first` decides if several have it, such as a
  /// link-local address without a scope id, and for an unspecified address, or a loopback address
  /// that no device has. Nothing is sent. A connection by another device ends with
  /// `error::wrong_device`, as the kernel takes the route's (rdma_resolve_addr(3)). Errors:
  /// `error::no_gid` if no device has the address; `error::no_device` if there is none. If,
  /// besides, the process cannot use one: the errors of `open`.
  static device open_for(const asio::ip::address& address);
  static device open_for(const asio::ip::address& address, error_code& ec);

  /// The ranking of `open_first` in words, for people: a line for each port, with the reason why it
  /// precedes the next one, and the reason why a device cannot be used.
  static std::string explain();

  /// Adopts an opened device. From the first queue pair on, the library reads the device's
  /// asynchronous events, and their descriptor is nonblocking. All handles of one `ibv_context` are
  /// equal, and objects made with either fit together; the context is closed with the last of them
  /// if any of them took it. Errors: `invalid_argument` for null, or the system's.
  device(native_handle_type context, ownership owns);
  device(native_handle_type context, ownership owns, error_code& ec);

  bool is_open() const noexcept { return impl_ != nullptr; }
  native_handle_type native_handle() const noexcept;
  /// Whether the device was removed from the machine, and has ended all use of memory. Its name and
  /// attributes are still known; new operations on it fail with `error::device_removed`.
  /// Precondition: open.
  bool is_removed() const noexcept;

  std::string name() const;
  transport type() const noexcept;

  /// The limits and abilities from ibv_query_device(3), queried when the device was opened.
  const ibv_device_attr& attributes() const noexcept;

  /// Abilities that the device reports.
  bool has_atomics() const noexcept;
  bool has_immediate() const noexcept;      ///< Immediate data with sends and writes: not on iWARP.
  bool has_memory_windows() const noexcept; ///< Of type 2 (bound to a queue pair).
  bool has_invalidation() const noexcept;   ///< Of keys, here and by SEND (memory extensions).
  /// Whether the device has memory windows, invalidates their keys, and confines an access to the
  /// range of the window by whose key it is made. Then long messages, and offers of a stream, from
  /// memory of a pool register nothing. rxe confines an access to the window's region only.
  bool confines_windows() const noexcept;
  /// FLUSH that ensures any of these placements. False if the library was compiled with the headers
  /// of an rdma-core that does not have FLUSH, such as 44.
  bool has_flush(placement any = placement::visible | placement::persistent) const noexcept;
  bool has_on_demand_paging() const noexcept; ///< For RC's sends, receives, reads and writes.
  /// Whether a receive of a `queue_pair` may have device-only memory (`const_buffer`). False on
  /// mlx5: its provider copies messages of up to 64 bytes out of the completion, by the CPU
  /// (mlx5dv_create_qp(3), *scatter to CQE*), unless the environment has `MLX5_SCATTER_TO_CQE=0`.
  /// The variable must be set when the device is opened and when queue pairs are.
  bool has_device_only_receives() const noexcept;
  /// The maximum number of buffers that one READ fills: one on iWARP (RFC 5040, section 4.4).
  std::uint32_t max_read_buffers() const noexcept;
  /// The most bytes of one SEND, RDMA WRITE or RDMA READ: `max_msg_sz` of the ports
  /// (ibv_query_port(3)), at most 2^31. Queried when the device was opened. A message of a
  /// `connection`, or an operation on the memory of its peer, may have more bytes.
  std::uint32_t max_message_bytes() const noexcept;

  /// The current state, LID, link layer and MTU of a port (ibv_query_port(3)). Ports count from 1.
  ibv_port_attr port(std::uint8_t number) const;
  ibv_port_attr port(std::uint8_t number, error_code& ec) const;

  /// The current rate of a port in Mbit/s: `active_width` times `active_speed` (ibv_query_port(3)).
  /// 0 if the port cannot be queried, or reports a value that is not known.
  std::uint32_t megabits(std::uint8_t number) const;

  /// The counters of a port, from the driver's files
  /// (/sys/class/infiniband/NAME/ports/N/hw_counters). A counter that the driver does not provide
  /// is empty. siw provides neither, because TCP retransmits there; rxe and mlx5 provide both. In a
  /// network namespace other than the initial one these files do not exist.
  port_counters counters(std::uint8_t number) const;

  /// The best active port, as ranked by `open_first`; port 1 if there is none. A port that cannot
  /// be queried counts as inactive.
  std::uint8_t first_port() const;

  /// The used entries of every port's GID table, the best one for a connection first: RoCE v2
  /// before v1, and IPv4-mapped before global IPv6 before link-local addresses; equal entries in
  /// the table's order. If there are others, entries of another network namespace are left out:
  /// their interface has another number or name here (/sys/class/infiniband/.../ndevs), or not the
  /// GID's address. Empty if the table cannot be read (ibv_query_gid_table(3)).
  std::vector<gid_entry> gids() const;

  /// The best entry of a port, or of the given local address: one of `addresses`, or a GID as an
  /// IPv6 address. A link-local address may lack its scope id.
  std::optional<gid_entry> best_gid(std::uint8_t port) const;
  std::optional<gid_entry> best_gid(const asio::ip::address& local) const;

  /// The IP addresses by which rdma_cm reaches the device. On RoCE these are the GIDs. On iWARP and
  /// InfiniBand they are the addresses of the network interfaces of this network namespace whose
  /// hardware address has the GID: on InfiniBand, of IPoIB (RFC 4391, section 9.1.1), with those of
  /// other partitions. IPv4 addresses precede IPv6 ones, and link-local addresses, with their
  /// interface as scope id, come last; equal ones are in the order of `gids`. Empty if there are
  /// none, as on InfiniBand without IPoIB.
  std::vector<asio::ip::address> addresses() const;
  /// Those of one port.
  std::vector<asio::ip::address> addresses(std::uint8_t port) const;

  friend bool operator==(const device&, const device&) = default;

  struct impl;
  /// The subscribers to the device's asynchronous events.
  detail::device_listeners& listeners() const noexcept;
  /// For the library, after a verb has failed with EIO: `is_removed`. Waits for the end of the
  /// removal for a short time, once for each opened device.
  bool is_removed_soon() const noexcept;
  /// For the library: the limits that opening a queue pair has found.
  detail::queue_pair_limits& queue_pair_limits() const noexcept;
  /// For the library: the completion vector of the next completion queue that has no option.
  int next_completion_vector() const noexcept;

private:
  explicit device(std::shared_ptr<impl> p) noexcept : impl_(std::move(p)) {}

  std::shared_ptr<impl> impl_;
};

} // namespace asio_rdma
#pragma GCC visibility pop
