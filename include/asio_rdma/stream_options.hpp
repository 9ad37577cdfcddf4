// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/set.hpp>
#include <asio_rdma/queue_pair_options.hpp>

#include <chrono>
#include <cstdint>

namespace asio_rdma {

/// Options of a stream. Each side chooses its own; the other side adapts.
struct stream_options {
  stream_options() {} // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// The number of posted receives, at least 5. They bound how much the peer may send before this
  /// program reads, as a socket's receive buffer does, and are nearly the whole cost of a stream
  /// that has no operation.
  std::uint32_t receives = 16;
  /// The size of a receive in bytes, at least 56; 16 of them are not payload. If the peer writes
  /// more than a receive takes, the receives grow, up to `max_receive_size` bytes each, and do not
  /// shrink. They do not grow if more than half of the pool's limit would then be in use, if
  /// `max_receive_size` is not larger than `receive_size`, or if the receives are shared. Bytes
  /// that the peer offers from registered memory are read ahead in addition, up to 1 MiB, or up to
  /// `receives` times `receive_size` if that is more.
  std::uint32_t receive_size = 4096;
  std::uint32_t max_receive_size = 262160;
  /// The send buffer: the number of frames outstanding at a time, and of blocks of up to 256 KiB
  /// whose bytes have been copied. A frame has at most the peer's receive size.
  std::uint32_t sends = 16;

  /// How long the peer may take none of the written bytes, at most a day. After that time the peer
  /// is asked whether its application has taken any bytes, and has the same time again to answer: a
  /// program that uses blocking functions answers when it calls the next one. If the application
  /// has taken none, the connection of a closed stream is reset, and a context that runs, or is
  /// destroyed, no longer waits. So it is, too, if a closed stream has waited about 16 times as
  /// long in all, and once more for each 64 KiB that went to the peer. 0: a close resets the
  /// connection without waiting. `socket_base::linger` changes this value for the close. The
  /// destructor of a context that was stopped (`io_context::stop`) does not wait at all.
  ///
  /// After a write was cancelled (or ended by a shutdown), the peer must report how many bytes it
  /// has read. If it does not report that within twice this time, at least two seconds, the
  /// connection is reset. `socket_base::linger` does not change that time.
  std::chrono::milliseconds linger{5000};

  /// The interval after which a silent peer is probed: see `connection_options::keep_alive`. 0:
  /// never.
  std::chrono::milliseconds keep_alive = std::chrono::seconds(10);

  /// The time within which the peer's device must answer a READ of bytes that the peer has offered:
  /// see `connection_options::read_timeout`. 0: any.
  std::chrono::milliseconds read_timeout = std::chrono::seconds(30);

  /// Whether the stream has a protection domain of its own, and a pool there: see
  /// `connection_options::own_domain`.
  bool own_domain = false;

  /// Options of the queue pair, whose type must be `IBV_QPT_RC`. The stream itself chooses the
  /// depths of the queues and the numbers of buffers.
  queue_pair_options queue_pair;

  /// Each sets the member of its name and returns the options:
  /// `stream_options().set_receives(…)`. Calls can be chained.
  ///@{
  stream_options& set_receives(std::uint32_t value) { return detail::set(*this, receives, value); }
  stream_options& set_receive_size(std::uint32_t value) {
    return detail::set(*this, receive_size, value);
  }
  stream_options& set_max_receive_size(std::uint32_t value) {
    return detail::set(*this, max_receive_size, value);
  }
  stream_options& set_sends(std::uint32_t value) { return detail::set(*this, sends, value); }
  stream_options& set_linger(std::chrono::milliseconds value) {
    return detail::set(*this, linger, value);
  }
  stream_options& set_keep_alive(std::chrono::milliseconds value) {
    return detail::set(*this, keep_alive, value);
  }
  stream_options& set_read_timeout(std::chrono::milliseconds value) {
    return detail::set(*this, read_timeout, value);
  }
  stream_options& set_own_domain(bool value) { return detail::set(*this, own_domain, value); }
  stream_options& set_queue_pair(const queue_pair_options& value) {
    return detail::set(*this, queue_pair, value);
  }
  ///@}
};

} // namespace asio_rdma
