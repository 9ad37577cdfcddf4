// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>
#include <boost/asio/error.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/error_condition.hpp>
#include <boost/system/system_error.hpp>
#include <infiniband/verbs.h>

#include <cerrno>
#include <string>
#include <type_traits>

#pragma GCC visibility push(default)
namespace asio_rdma {

namespace asio = boost::asio;
using boost::system::error_code;
using boost::system::system_error;

/// The errors of this library. Each message describes the error and, for errors that are common in
/// first use, the remedy.
enum class error {
  no_device = 1,          ///< The machine has no RDMA device, or none with an active port.
  device_not_found,       ///< No RDMA device has that name.
  device_permission,      ///< This user may not open the file of the device or of rdma_cm.
  device_fatal,           ///< The device reported a fatal error; its queue pairs have failed.
  memory_limit,           ///< The limit on locked memory prevents registration.
  no_gid,                 ///< The device's port has no usable GID for the address.
  wrong_device,           ///< The address belongs to another device than the queue pair's.
  loopback_address,       ///< No RDMA device serves loopback; the message names other addresses.
  too_many_buffers,       ///< More scatter/gather elements than `queue_pair_options` allow.
  remote_range,           ///< The operation exceeds the remote buffer that it was given.
  misaligned,             ///< The remote address is not aligned: to 8 bytes for atomic operations.
  rejected,               ///< The peer's program or acceptor refused the connection.
  peer_not_listening,     ///< The address answers, but nothing listens at that port.
  unreachable,            ///< No route or no answer from the address.
  incompatible_peer,      ///< The peer has another protocol, version or kind of object.
  protocol_violation,     ///< The peer broke the protocol.
  queue_pair_fatal,       ///< The device moved the queue pair to the error state.
  completion_queue_full,  ///< The completion queue has no room for the queue pair's entries.
  pool_limit,             ///< The memory pool may not grow beyond its limit.
  buffer_in_use,          ///< Another operation or access uses bytes of the buffer.
  lease_expired,          ///< The lease on remote memory has ended.
  lease_revoked,          ///< The owner has taken remote memory back.
  rights_refused,         ///< The owner of remote memory does not give these rights.
  remote_memory_limit,    ///< The owner gives a peer no more remote memory.
  node_unknown,           ///< That node of a global memory has not been joined.
  node_in_use,            ///< Another node of a global memory has that id.
  owner_dead,             ///< The lock's holder, or a party that waited for it, has died.
  device_keeps_memory,    ///< The device may still use the operation's memory.
  shared_receives_full,   ///< The shared receives are too few for another link.
  shared_receives_closed, ///< The receives that the link shared with others have been closed.
  /// The device was removed from the machine, or its driver failed a call with EIO.
  device_removed,
  peer_out_of_memory,  ///< The peer has no memory for the message, or for the memory requested.
  peer_message_limit,  ///< The message is longer than the peer accepts.
  device_file_missing, ///< The kernel has the device, but its file in /dev/infiniband is missing.
  provider_missing,    ///< The kernel has the device, but libibverbs has no provider for it.
  module_missing,      ///< A module of the kernel is not loaded: ib_uverbs or rdma_ucm.
  peer_access_refused  ///< This side's device has refused a request of the peer's.
};

/// The category of `error`. Some errors have a text that names what the library found, such as the
/// file that may not be opened, or the version of the peer. Their categories are objects of their
/// own, which compare equal to this one as categories of Boost.System. Converted to
/// `std::error_code` such errors compare equal to conditions (`std::errc`), not to each other.
const boost::system::error_category& library_category() noexcept;

/// The category of work completion statuses (`ibv_wc_status`, ibv_poll_cq(3)). Each maps onto a
/// generic condition: access errors onto `permission_denied`, exceeded retries onto `timed_out`,
/// and so on. A flushed request is never reported in this category: it becomes
/// `asio::error::operation_aborted` if this side closed or cancelled, and
/// `asio::error::connection_reset` if the connection failed.
const boost::system::error_category& completion_category() noexcept;

inline error_code make_error_code(error e) noexcept {
  return {static_cast<int>(e), library_category()};
}

namespace detail {

inline error_code completion_error(ibv_wc_status status) noexcept {
  return {static_cast<int>(status), completion_category()};
}

/// The error of a call with this errno value. A verb fails with EIO if its device was removed, also
/// before the event of that has been read (kernel, `ib_uverbs_get_ucontext`). Some drivers return
/// EIO for other failures, too: `device::is_removed` tells.
inline error_code system_error_code(int value) noexcept {
  if (value == EIO)
    return make_error_code(error::device_removed);
  return {value, boost::system::system_category()};
}

[[noreturn]] void throw_error(const error_code& ec, const char* what);
/// Names the object in the text: an address, or the name of a device.
[[noreturn]] void throw_error(const error_code& ec, const char* what, const std::string& object);

inline void throw_if(const error_code& ec, const char* what) {
  if (ec)
    throw_error(ec, what);
}

} // namespace detail
} // namespace asio_rdma

namespace boost::system {
template <>
struct is_error_code_enum<asio_rdma::error> : std::true_type {};
} // namespace boost::system

/// Allows comparisons such as `ec == IBV_WC_REM_ACCESS_ERR`.
inline boost::system::error_code make_error_code(ibv_wc_status status) noexcept {
  return asio_rdma::detail::completion_error(status);
}

namespace boost::system {
template <>
struct is_error_code_enum<ibv_wc_status> : std::true_type {};
} // namespace boost::system
#pragma GCC visibility pop
