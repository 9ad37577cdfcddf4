// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair_options.hpp>

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// Limits of the memory of this side that the peer of a connection may request
/// (`async_request_memory`). Memory lent by `async_send_region` does not count.
struct remote_memory_options {
  access rights = access::remote_read | access::remote_write; ///< The rights that may be granted.
  /// Bytes granted at a time; with 0 every request is refused. Memory that the peer hands back
  /// (`async_send_region`) counts until `async_receive_region` receives it; memory that the peer
  /// releases counts until its key has ended.
  std::uint64_t bytes = 0;
  std::uint32_t grants = 16; ///< Requests granted at a time, counted likewise; at most 65535.
  /// The lease of a request that specifies none, and the longest lease; a longer one is shortened
  /// to it. Not negative.
  std::chrono::microseconds default_lease = std::chrono::seconds(10);
  std::chrono::microseconds longest_lease = std::chrono::minutes(10);
  /// The time after the end of a lease during which the device still admits the peer. An operation
  /// that was started within the lease, and has not waited longer than this time, thus does not
  /// break the connection. A lease expires only while this side's context runs.
  std::chrono::microseconds grace = std::chrono::milliseconds(500);

  /// Each sets the member of its name and returns the options:
  /// `remote_memory_options().set_rights(…)`. Calls can be chained.
  ///@{
  remote_memory_options& set_rights(access value) { return detail::set(*this, rights, value); }
  remote_memory_options& set_bytes(std::uint64_t value) { return detail::set(*this, bytes, value); }
  remote_memory_options& set_grants(std::uint32_t value) {
    return detail::set(*this, grants, value);
  }
  remote_memory_options& set_default_lease(std::chrono::microseconds value) {
    return detail::set(*this, default_lease, value);
  }
  remote_memory_options& set_longest_lease(std::chrono::microseconds value) {
    return detail::set(*this, longest_lease, value);
  }
  remote_memory_options& set_grace(std::chrono::microseconds value) {
    return detail::set(*this, grace, value);
  }
  ///@}
};

/// Options of a connection. Each side chooses its own; the other side adapts.
struct connection_options {
  connection_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// The number of posted receives, at least 5, of at least 56 bytes. They bound how much the peer
  /// may send before this program receives, and are most of the cost of an idle connection.
  std::uint32_t receives = 32;
  /// A message of up to this many bytes, less 16, is sent whole at once; a longer message is
  /// offered, and read by the receiver. The receiver's value applies. When an offered message
  /// of up to `max_receive_size` bytes, less 16, is read into other than device-only memory, the
  /// receives grow to it, so that later ones are sent whole. They do not shrink. They do not grow
  /// if more than half of the pool's limit would then be in use, if `max_receive_size` is not
  /// larger than `receive_size`, or if the receives are shared.
  std::uint32_t receive_size = 8192;
  std::uint32_t max_receive_size = 131088;
  std::uint32_t sends = 32; ///< Frames outstanding at a time; more wait their turn.
  /// Small messages (up to 240 bytes) share frames of up to 1024 bytes, of which there is memory
  /// for `sends`. A small message that is sent while a frame of small messages is outstanding waits
  /// for the completion of that frame and for the handlers of its messages, so it needs the context
  /// to run. If false, each message has a frame of its own, which is posted at once.
  bool gather = true;

  /// The largest message in bytes. Longer messages are refused, but a message of up to 40 bytes
  /// never is. Receives are no larger than `max_message` requires.
  std::uint64_t max_message = std::uint64_t(1) << 30;
  std::uint32_t offers = 16; ///< Long messages offered at a time, each with a key of its own.
  std::uint32_t pulls = 4;   ///< Long messages read at a time, at least one.
  /// Long messages are read into memory of the pool, unless the receive has registered memory of
  /// its own. This is how many bytes they take there until they are received; further ones wait.
  /// A longer message is refused, and so is one that would leave less than an eighth of the pool's
  /// limit unused: its sender gets `error::peer_out_of_memory`. The connection's only message may
  /// leave a sixteenth if it has up to 1 MiB, and nothing if it has up to 128 KiB. 0: half of the
  /// pool's limit.
  std::uint64_t pull_bytes = 0;

  /// The peer is probed (by a zero-length RDMA WRITE) if nothing has arrived from it for a time
  /// between half of this interval and the interval; not while a request is outstanding, which the
  /// queue pair repeats by itself, except on iWARP. So the death of a peer is detected within this
  /// interval and the time of the queue pair's retries, on iWARP when TCP gives up (tcp(7),
  /// `tcp_retries2`). On iWARP a connector that sends nothing within this interval after it has
  /// been accepted ends the connection with `timed_out`: before its first frame it cannot be
  /// probed (RFC 5044, section 7). Only while the context runs. 0: never.
  std::chrono::milliseconds keep_alive = std::chrono::seconds(10);

  /// The connection ends with `timed_out` if the peer is late with READs of its memory by this time
  /// and a microsecond for each byte outstanding, at the latest after half of the time more. Late:
  /// the time in which a READ was outstanding, less three seconds and a microsecond for each byte
  /// of those that have ended. READs have the accesses of this program (`async_read`), and the
  /// messages that the peer offers. On InfiniBand and RoCE a dead peer is noticed before, by the
  /// retries of the queue pair; on iWARP nothing else ends a READ that the peer's device
  /// acknowledges and never answers (RFC 5040, section 5.2). Only while the context runs. 0: never.
  std::chrono::milliseconds read_timeout = std::chrono::seconds(30);

  remote_memory_options remote_memory; ///< Limits of the peer's requests for memory.

  /// Whether the connection has a protection domain of its own, and a pool there, which
  /// `memory_pool::in_own_domain` makes of the given pool. No key of this side's memory that the
  /// peer learns is then of use to another peer, on any device. Use it for peers that do not trust
  /// each other (SECURITY.md). Without it, that holds only for keys of memory windows.
  ///
  /// `connection::pool` is the pool of its own. Registered memory that is used in place must be of
  /// that pool or its protection domain; memory that is lent need not. Memory of another connection
  /// is sent by `asio::buffer(m)`, which is copied. `open` fails with `invalid_argument` if the
  /// receives are shared.
  bool own_domain = false;

  /// Options of the queue pair, whose type must be `IBV_QPT_RC`. `receives` sets the depth of its
  /// receive queue, and its work requests have room for at least the buffers that a connection
  /// needs.
  queue_pair_options queue_pair;

  /// Each sets the member of its name and returns the options:
  /// `connection_options().set_receives(…)`. Calls can be chained.
  ///@{
  connection_options& set_receives(std::uint32_t value) {
    return detail::set(*this, receives, value);
  }
  connection_options& set_receive_size(std::uint32_t value) {
    return detail::set(*this, receive_size, value);
  }
  connection_options& set_max_receive_size(std::uint32_t value) {
    return detail::set(*this, max_receive_size, value);
  }
  connection_options& set_sends(std::uint32_t value) { return detail::set(*this, sends, value); }
  connection_options& set_gather(bool value) { return detail::set(*this, gather, value); }
  connection_options& set_max_message(std::uint64_t value) {
    return detail::set(*this, max_message, value);
  }
  connection_options& set_offers(std::uint32_t value) { return detail::set(*this, offers, value); }
  connection_options& set_pulls(std::uint32_t value) { return detail::set(*this, pulls, value); }
  connection_options& set_pull_bytes(std::uint64_t value) {
    return detail::set(*this, pull_bytes, value);
  }
  connection_options& set_keep_alive(std::chrono::milliseconds value) {
    return detail::set(*this, keep_alive, value);
  }
  connection_options& set_read_timeout(std::chrono::milliseconds value) {
    return detail::set(*this, read_timeout, value);
  }
  connection_options& set_remote_memory(const remote_memory_options& value) {
    return detail::set(*this, remote_memory, value);
  }
  connection_options& set_own_domain(bool value) { return detail::set(*this, own_domain, value); }
  connection_options& set_queue_pair(const queue_pair_options& value) {
    return detail::set(*this, queue_pair, value);
  }
  ///@}
};

} // namespace asio_rdma
