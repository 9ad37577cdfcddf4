// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/connecting/cm_support.hpp"

#include <cstdint>
#include <string>

namespace test {

/// Runs a shell command; throws if it fails.
void run(const std::string& command);

/// During its lifetime, objects that this thread makes belong to the network of this host of the
/// lab (1, 2).
class on_host {
public:
  explicit on_host(int host);
  ~on_host();
  on_host(const on_host&) = delete;
  on_host& operator=(const on_host&) = delete;

private:
  int before_;
};

/// The RDMA device of a host, and its address.
device device_of(int host);
asio::ip::address address_of(int host);

/// During its lifetime, this share of the host's outgoing packets is lost.
class loss {
public:
  loss(int host, int percent);
  ~loss();
  loss(const loss&) = delete;
  loss& operator=(const loss&) = delete;
  /// The number of packets lost.
  std::uint64_t packets() const;

private:
  std::string interface_;
};

/// Until it is destroyed or `up` is called, the host's network interface is down.
class link_down {
public:
  explicit link_down(int host);
  ~link_down();
  link_down(const link_down&) = delete;
  link_down& operator=(const link_down&) = delete;
  void up();

private:
  int host_;
  bool down_ = true;
};

/// During its lifetime, TCP of both hosts gives up within seconds. siw uses TCP, which by default
/// continues for a quarter of an hour (tcp(7), tcp_retries2); the queue pair's options do not
/// affect it.
class short_tcp {
public:
  short_tcp();
  ~short_tcp();
  short_tcp(const short_tcp&) = delete;
  short_tcp& operator=(const short_tcp&) = delete;
};

/// The pending operations of a host's queue pair: writes that follow each other without end,
/// receives for which no message arrives, and a wait for the disconnect.
class burden {
public:
  static constexpr int chains = 8;
  burden(queue_pair& qp, const memory& from, const remote_buffer& to);
  burden(const burden&) = delete;
  burden& operator=(const burden&) = delete;

  /// Starts no more writes.
  void stop() { stopped_ = true; }
  bool over() const { return ended == started && receives_over() && gone.done(); }
  bool writes_over() const { return ended == started; }

  int started = 0, ended = 0;
  int timed_out = 0, reset = 0, failed_otherwise = 0; // of the writes
  std::string other;                                  // one of those that failed otherwise
  got receives[chains];
  outcome<void> gone;

private:
  void write();
  bool receives_over() const;

  queue_pair& qp_;
  const memory& from_;
  remote_buffer to_;
  bool stopped_ = false;
};

enum class way { connection_manager, by_hand_where_possible };

/// A connected queue pair on each host. The second host has requested the connection.
struct two_hosts {
  static constexpr std::size_t memory_size = 256 * 1024;

  explicit two_hosts(const queue_pair_options& options = {}, way how = way::connection_manager);
  bool iwarp() const { return d1.type() == transport::iwarp; }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  // Operations use these objects, so they are destroyed after the context.
  device d1 = device_of(1), d2 = device_of(2);
  protection_domain pd1{d1}, pd2{d2};
  memory m1{pd1, memory_size, all_rights}, m2{pd2, memory_size, all_rights};
  asio::io_context io{1};
  acceptor listener{io};
  connector initiator{io};
  queue_pair q1{io}, q2{io};

private:
  void connect();
};

} // namespace test
