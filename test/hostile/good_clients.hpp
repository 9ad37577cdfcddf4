// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/global/global_support.hpp"
#include "hostile/machine.hpp"
#include "hostile/report.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/awaitable.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace test {

/// Clients that use a victim as any program does, on a thread of their own: they connect anew for
/// each round, and compare what comes back.
class good_clients {
public:
  explicit good_clients(shared_report& victim);
  ~good_clients();
  good_clients(const good_clients&) = delete;

  /// The rounds of the client that has made the fewest.
  std::uint64_t rounds() const noexcept;
  /// A time by two clocks. A slow machine delays the victim's ticks as much as a wait, so a wait in
  /// ticks is the victim's own. But ticks do not see that the victim's context stands still. The
  /// nanoseconds do: they are those of the clock, without time in which the machine did not run
  /// the two threads.
  struct duration {
    std::uint64_t ticks = 0, ns = 0;
  };
  /// The longest wait for one operation.
  duration longest_wait() const noexcept { return longest_.get(); }
  /// The same for the connections alone.
  duration longest_connect() const noexcept { return longest_connect_.get(); }
  void forget_waits() noexcept {
    longest_.forget();
    longest_connect_.forget();
  }
  /// The first error; empty if there was none.
  std::string failure() const;

private:
  /// All counters, at one time.
  struct moment {
    std::uint64_t ticks, ns, late, waited, own_late, own_waited;
  };
  moment now() const;
  /// The longest of many times, by each of the clocks.
  class longest {
  public:
    void add(const moment& from, const moment& to) noexcept;
    duration get() const noexcept { return {ticks_, ns_}; }
    void forget() noexcept { ticks_ = ns_ = 0; }

  private:
    std::atomic<std::uint64_t> ticks_{0}, ns_{0};
  };

  asio::awaitable<void> messages();
  asio::awaitable<void> bytes();
  asio::awaitable<void> memory();
  /// Whether an operation has succeeded.
  bool passed(const moment& began, const error_code& ec, const char* what);
  bool connected(const moment& began, const error_code& ec, const char* what);
  asio::ip::tcp::endpoint at(std::uint32_t port) const;

  shared_report& victim_;
  device dev_ = open_device();
  memory_pool pool_{protection_domain(dev_)};
  asio::io_context io_;
  connector connector_{io_};
  global_memory node_{io_, pool_, guest_id};
  std::atomic<std::uint64_t> rounds_[3] = {};
  longest longest_, longest_connect_;
  std::atomic<std::uint64_t> late_{0}, waited_{0};
  std::optional<processor_wait> wait_; // of the thread
  std::atomic<bool> over_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  std::thread thread_;
};

} // namespace test
