// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/ip/address.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

  /// The source of most of these connectors; none if no other source has more of them than that of
  /// `newcomer`, itself included. Throws `std::bad_alloc`.
  static std::optional<asio::ip::address> busiest_source(std::vector<asio::ip::address> connectors,
                                                         const asio::ip::address& newcomer);

  /// The sources of the handshakes under way.
  class sources {
  public:
    /// The number of handshakes of the connector's source.
    std::size_t count(const asio::ip::address& connector) const noexcept;

  private:
    friend class pending_handshakes;
    std::vector<asio::ip::address> all_; // in order; one for each handshake
  };

  /// Throws `std::bad_alloc`.
  void begin(const std::shared_ptr<cm_connection>& which, const asio::ip::address& connector,
             std::chrono::milliseconds timeout, clock::time_point now);
  /// The handshake has failed, or it has ended before.
  void end(const cm_connection& which) noexcept;
  /// The connector has confirmed the answer.
  void confirm(const cm_connection& which, clock::time_point now) noexcept;
  /// This side was busy for so long: no handshake was silent meanwhile.
  void allow(clock::duration busy) noexcept;

  std::size_t count() const noexcept;
  /// Without memory the result is empty.
  sources by_source() const noexcept;

  /// A handshake that makes way for others, while `waiting` requests wait.
  struct overdue {
    std::shared_ptr<cm_connection> which; ///< Null: none may be ended yet.
    clock::time_point next; ///< The time when the next one may be ended; the maximum if none.
  };
  /// Finds a handshake that has been silent for its timeout divided by the number of handshakes and
  /// waiting requests, but at least for `patience`. As long as other connectors confirm, machine or
  /// network may just be slow: then the time begins anew, until `generation` connectors that were
  /// answered later have confirmed. Of these handshakes, it is the oldest one of the source with
  /// the most handshakes under way. The result is no longer under way.
  overdue take_overdue(clock::time_point now, std::size_t waiting,
                       std::chrono::milliseconds patience) noexcept;

private:
  static constexpr std::uint64_t generation = 64;

  struct entry {
    std::weak_ptr<cm_connection> which;
    const cm_connection* key;
    asio::ip::address source;
    clock::time_point since;
    std::chrono::milliseconds timeout;
    std::uint64_t confirmed_before;
  };

  std::size_t locked_count(const asio::ip::address& source) const noexcept;

  mutable std::mutex mutex_;
  std::list<entry> entries_; // the oldest first
  std::uint64_t confirmed_ = 0;
  clock::time_point last_confirmed_ = clock::time_point::min();
};

/// The ids of a context's requests that wait to be destroyed, or are being destroyed, by source
/// (`pending_handshakes::source_of`). A peer may provoke slow destructions faster than the kernel
/// makes them. Thread-safe.
class ending_ids {
public:
  /// While so many ids wait, acceptors answer no further requests.
  static constexpr std::size_t most_ends = 1024;
  /// While so many ids of one source wait, acceptors answer no further requests of that source.
  /// Further ids of the source do not count for `most_ends`, so one source never stops the others.
  static constexpr std::size_t most_ends_of_source = most_ends / 4;

  /// The sources of which acceptors answer no requests.
  class crowded_sources {
  public:
    bool empty() const noexcept { return all_.empty(); }
    bool have(const asio::ip::address& connector) const noexcept;

  private:
    friend class ending_ids;
    std::vector<asio::ip::address> all_; // in order
  };

  /// Counts an id of the connector. Returns false, and counts nothing, if there is no memory.
  bool begin(const asio::ip::address& connector) noexcept;
  void end(const asio::ip::address& connector) noexcept;
  bool pile_up() const noexcept { return counted_ >= most_ends; }
  /// Without memory the result is empty.
  crowded_sources crowded() const noexcept;

  /// The number of the connector's source, for `background_call::group`.
  static std::uint64_t number_of(const asio::ip::address& connector) noexcept;

private:
  mutable std::mutex mutex_;
  std::map<asio::ip::address, std::size_t> sources_; // none has no ids
  std::atomic<std::size_t> counted_{0};              // of each source `most_ends_of_source` at most
  std::atomic<std::size_t> crowded_{0};              // sources
};

} // namespace asio_rdma::detail
