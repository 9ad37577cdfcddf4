// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/global/global_support.hpp"
#include "hostile/report.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/awaitable.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
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
  /// The longest wait for one operation, in ticks of the victim.
  std::uint64_t longest_wait() const noexcept { return longest_; }
  /// The same for the connections alone.
  std::uint64_t longest_connect() const noexcept { return longest_connect_; }
  void forget_waits() noexcept { longest_ = longest_connect_ = 0; }
  /// The first error; empty if there was none.
  std::string failure() const;

private:
  asio::awaitable<void> messages();
  asio::awaitable<void> bytes();
  asio::awaitable<void> memory();
  /// Whether an operation that began at the tick `began` has succeeded.
  bool passed(std::uint64_t began, const error_code& ec, const char* what);
  bool connected(std::uint64_t began, const error_code& ec, const char* what);
  asio::ip::tcp::endpoint at(std::uint32_t port) const;

  shared_report& victim_;
  device dev_ = open_device();
  memory_pool pool_{protection_domain(dev_)};
  asio::io_context io_;
  connector connector_{io_};
  global_memory node_{io_, pool_, guest_id};
  std::atomic<std::uint64_t> rounds_[3] = {};
  std::atomic<std::uint64_t> longest_{0}, longest_connect_{0};
  std::atomic<bool> over_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  std::thread thread_;
};

} // namespace test
