// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/ip/address.hpp>

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

namespace asio = boost::asio;

class cm_connection;

/// The handshakes under way of an acceptor: its requests that have been answered and whose
/// connectors have not confirmed the answer. Thread-safe.
class pending_handshakes {
public:
  using clock = std::chrono::steady_clock;

  /// The connectors that count as one source: an IPv4 address, or the network of an IPv6 address
  /// (its first 64 bits).
  static asio::ip::address source_of(const asio::ip::address& connector) noexcept;

  /// Throws `std::bad_alloc`.
  void begin(const std::shared_ptr<cm_connection>& which, const asio::ip::address& connector,
             std::chrono::milliseconds timeout, clock::time_point now);
  void end(const cm_connection& which) noexcept;

  std::size_t count() const noexcept;
  std::size_t count(const asio::ip::address& source) const noexcept;

  /// A handshake that makes way for others, while `waiting` requests wait.
  struct overdue {
    std::shared_ptr<cm_connection> which; ///< Null: none may be ended yet.
    clock::time_point next; ///< The time when the next one may be ended; the maximum if none.
  };
  /// Finds a handshake that has been silent for its timeout divided by the number of handshakes and
  /// waiting requests, but at least for `patience`. Of these, it is the oldest one of the source
  /// with the most handshakes under way. The result is no longer under way.
  overdue take_overdue(clock::time_point now, std::size_t waiting,
                       std::chrono::milliseconds patience) noexcept;

private:
  struct entry {
    std::weak_ptr<cm_connection> which;
    const cm_connection* key;
    asio::ip::address source;
    clock::time_point since;
    std::chrono::milliseconds timeout;
  };

  std::size_t locked_count(const asio::ip::address& source) const noexcept;

  mutable std::mutex mutex_;
  std::list<entry> entries_; // the oldest first
};

} // namespace asio_rdma::detail
